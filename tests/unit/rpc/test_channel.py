"""What a channel refuses before it connects, and its retry policy."""

from __future__ import annotations

import json
import logging

import grpc
import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import (
    ChannelOptions,
    open_aio_channel,
    open_channel,
    service_config,
)
from support.errors import raises


@pytest.mark.parametrize("address", ["10.0.0.7:80", "dns:///example.org:80", "0.0.0.0:80"])
def test_plaintext_stays_on_this_machine(address):
    with raises(InvalidInput, "INSECURE_ADDRESS") as caught:
        open_channel(address, "secret-token")
    assert "secret-token" not in str(caught.value)


def test_the_flag_warns(caplog):
    with caplog.at_level(logging.WARNING):
        open_channel("10.0.0.7:80", "secret-token", ChannelOptions(allow_insecure=True)).close()
    assert "without TLS" in caplog.text
    assert "secret-token" not in caplog.text


async def test_aio_refuses_too():
    with pytest.raises(InvalidInput):
        open_aio_channel("10.0.0.7:80")


def test_port_zero_is_for_servers():
    with raises(InvalidInput, "INVALID_ADDRESS"):
        open_channel("127.0.0.1:0")


def test_retry_policy_names_only_idempotent_methods():
    config = json.loads(service_config(["/a.B/Get", "/a.B/List"]))
    (method_config,) = config["methodConfig"]
    assert method_config["name"] == [
        {"service": "a.B", "method": "Get"},
        {"service": "a.B", "method": "List"},
    ]
    assert method_config["retryPolicy"]["retryableStatusCodes"] == [
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
    ]
    assert method_config["retryPolicy"]["maxAttempts"] <= 5
    assert json.loads(service_config([])) == {}


def test_channel_is_an_ordinary_one():
    with open_channel("127.0.0.1:1") as channel:
        assert isinstance(channel, grpc.Channel)
