"""A minimal HTTP/2 client: it opens calls and sends as much of them as a test wants, with or
without a token."""

from __future__ import annotations

import contextlib
import select
import socket
import struct


class RawConnection:
    """A connection to `address`, host:port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        self._next = 1

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def open_calls(
        self, method: str, count: int, token: str = "", body: bytes | None = None
    ) -> None:
        """Send HEADERS of so many calls, and for each a DATA frame with `body` where there is one;
        none is ended."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "x")]
        fields += [("te", "trailers"), ("content-type", "application/grpc")]
        if token:
            fields.append(("authorization", f"Bearer {token}"))
        headers = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)
        for _ in range(count):
            self._socket.sendall(
                _frame(1, 4, self._next, headers)
                + (_frame(0, 0, self._next, body) if body else b"")
            )
            self._next += 2
            self.read()

    def read(self) -> None:
        """Take what the server has sent, so that it can send more."""
        with contextlib.suppress(OSError):
            while select.select([self._socket], [], [], 0.0)[0] and self._socket.recv(1 << 16):
                pass


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def _text(value: str) -> bytes:
    assert len(value) < 127, "HPACK needs more than one byte for a longer one"
    return bytes([len(value)]) + value.encode()
