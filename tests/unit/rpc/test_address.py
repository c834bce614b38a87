"""Which addresses are understood, and which stay on this machine."""

from __future__ import annotations

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import parse_address
from support.errors import raises


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("unix:///run/podracer/worker.sock", True),
        ("127.0.0.1:8080", True),
        ("127.8.9.10:0", True),
        ("localhost:1", True),
        ("[::1]:65535", True),
        ("dns:///localhost:8080", True),
        ("0.0.0.0:8080", False),
        ("[::]:8080", False),
        ("10.0.0.7:8080", False),
        ("dns:///orchestrator.podracer:8080", False),
        ("localhost.example.org:8080", False),
    ],
)
def test_addresses(text, local):
    address = parse_address(text)
    assert str(address) == text
    assert address.is_local is local


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "8080",
            ":8080",
            "localhost",
            "localhost:",
            "localhost:http",
            "localhost:-1",
            "localhost:65536",
            "::1:80",
        ),
        *(
            "unix://relative.sock",
            "unix:relative.sock",
            "unix:///" + "a" * 107,
            "http://localhost:80",
            "localhost:٣",
        ),
    ],
)
def test_malformed_addresses(text):
    with raises(InvalidInput, "INVALID_ADDRESS") as caught:
        parse_address(text)
    assert repr(text) in caught.value.message


def test_port_zero_gets_its_port():
    assert str(parse_address("[::1]:0").with_port(5)) == "[::1]:5"


@pytest.mark.parametrize(
    ("text", "wildcard"),
    [("0.0.0.0:1", True), ("[::]:1", True), ("127.0.0.1:1", False), ("unix:///a", False)],
)
def test_a_wildcard_address_cannot_be_called(text, wildcard):
    assert parse_address(text).is_wildcard is wildcard
