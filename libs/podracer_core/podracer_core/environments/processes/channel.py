"""Messages over a stream socket between us and a process that runs user code; neither torch nor user code is imported.

A message is a line of JSON, and then as many bytes as its `payload_bytes` says. The empty line is the empty message: it
costs no JSON, and a batch goes through two of them at every step.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

_PART_BYTES = 1 << 16
_PATIENCE_S = 0.25  # how late a deadline may be noticed
_SPIN_S = 100e-6
_yield_core = getattr(os, "sched_yield", lambda: None)


class Channel:
    """One end of the socket.

    A process that sleeps takes some 50 µs to wake up, more than a step of a cheap environment. So where `spins`, a
    wait of the kind that has been short lately begins with a look at the socket over and over, giving the core away
    each time, before it sleeps.
    """

    def __init__(self, connection: socket.socket, *, spins: bool) -> None:
        seconds = struct.pack("ll", int(_PATIENCE_S), int(_PATIENCE_S % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self._connection = connection
        self._spins = spins
        self._received = bytearray()
        self._waited_s = math.inf

    def send(self, message: Mapping[str, Any], payload: bytes = b"") -> None:
        """Raises OSError if the other side is gone."""
        if not message and not payload:
            self._connection.sendall(b"\n")
            return
        header = {**message, "payload_bytes": len(payload)} if payload else message
        self._connection.sendall(json.dumps(header).encode() + b"\n")
        if payload:
            self._connection.sendall(payload)

    def receive(self, deadline: float = math.inf) -> tuple[dict[str, Any], bytes]:
        """The next message and its payload.

        Raises TimeoutError when `deadline` (of `time.monotonic`) has passed, OSError if the other side is gone, and
        ValueError if what came is no message. After a TimeoutError one may go on waiting.
        """
        while True:
            part = self._wait(deadline)
            if part == b"\n" and not self._received:
                return {}, b""
            self._received += part
            message = self._take()
            if message is not None:
                return message

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _take(self) -> tuple[dict[str, Any], bytes] | None:
        """The message at hand, if all of it has come."""
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        header = json.loads(line) if line else {}
        if not isinstance(header, dict):
            raise ValueError(f"{line[:100]!r} is not a message")
        payload_bytes = header.pop("payload_bytes", 0)
        if len(rest) < payload_bytes:
            return None
        self._received.clear()
        if len(rest) > payload_bytes:
            raise ValueError(f"{rest[payload_bytes:][:100]!r} follows a message")
        return header, bytes(rest)

    def _wait(self, deadline: float) -> bytes:
        began = time.perf_counter()
        # As long again, because waking up counts too.
        part = self._look_until(began + _SPIN_S) if self._spins and self._waited_s < 2 * _SPIN_S else None
        while part is None:
            try:
                part = self._connection.recv(_PART_BYTES)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("nothing came in time") from None
        self._waited_s = time.perf_counter() - began
        if not part:
            raise ConnectionResetError("the other side has hung up")
        return part

    def _look_until(self, end: float) -> bytes | None:
        while time.perf_counter() < end:
            try:
                return self._connection.recv(_PART_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _yield_core()
        return None
