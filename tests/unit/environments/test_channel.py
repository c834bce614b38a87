"""Messages between two ends of a socket, whole and in pieces."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from podracer_core.environments.processes import Channel


@pytest.fixture(params=[False, True], ids=["sleeping", "spinning"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends, and the socket of the second."""
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one, spins=request.param), Channel(other, spins=request.param), other


def test_messages_and_payloads_arrive(ends):
    left, right, _ = ends
    for message, payload in (
        ({}, b""),
        ({"a": [1, "é"]}, b""),
        ({}, b"\n\nraw"),
        ({"b": 2}, bytes(300_000)),
    ):
        sender = threading.Thread(target=left.send, args=(message, payload))
        sender.start()
        assert right.receive() == (message, payload)
        sender.join()
    right.send({})
    assert left.receive() == ({}, b"")


def test_in_pieces(ends):
    left, _, raw = ends
    for piece in (b'{"a"', b': 1, "payload_bytes": 3}', b"\n", b"x"):
        raw.sendall(piece)
        with pytest.raises(TimeoutError):
            left.receive(time.monotonic())
    raw.sendall(b"yz")
    assert left.receive() == ({"a": 1}, b"xyz")


def test_a_deadline_and_a_hang_up(ends):
    left, right, raw = ends
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="in time"):
        left.receive(began + 0.3)
    assert time.monotonic() - began > 0.25
    right.send({})
    assert left.receive() == ({}, b""), "one may go on"
    raw.close()
    with pytest.raises(ConnectionError):
        left.receive()
    with pytest.raises(OSError, match="pipe"):
        left.send({})


@pytest.mark.parametrize(
    "noise", [b"all my numbers\n", b"[1]\n", b"\n\n", b"{}\nmore", b"\xff\xfe\n"]
)
def test_noise_is_no_message(ends, noise):
    left, _, raw = ends
    raw.sendall(noise)
    with pytest.raises(ValueError):
        left.receive()
