"""Addresses of workers: given one by one, or as names that stand for several."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from podracer_core.errors import InvalidInput
from podracer_learner.peers import WorkerDirectory, resolve_host
from podracer_platform.rpc import ChannelOptions

OPTIONS = ChannelOptions(allow_insecure=True)


class Names:
    """A name server."""

    def __init__(self, **hosts: Sequence[str]) -> None:
        self.hosts: dict[str, Sequence[str]] = hosts
        self.asked: list[str] = []

    def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.hosts:
            raise socket.gaierror(-2, "Name or service not known")
        return self.hosts[host]


def directory(names: Names, *addresses: str) -> WorkerDirectory:
    return WorkerDirectory(addresses, None, OPTIONS, names.resolve)


def test_names_stand_for_all_their_addresses_and_are_resolved_again():
    names = Names(pool=["10.0.0.1", "10.0.0.2"], more=["10.0.0.2", "fd00::7"])
    found = directory(
        names, "dns:///pool:7700", "unix:///run/w.sock", "more:7700", "127.0.0.1:9", "localhost:8"
    )
    assert found.addresses() == [
        "10.0.0.1:7700",
        "10.0.0.2:7700",
        "unix:///run/w.sock",
        "[fd00::7]:7700",
        "127.0.0.1:9",
        "localhost:8",
    ]
    assert names.asked == ["pool", "more"]
    names.hosts = {"pool": ["10.0.0.9"], "more": []}
    assert found.addresses() == [
        "10.0.0.9:7700",
        "unix:///run/w.sock",
        "127.0.0.1:9",
        "localhost:8",
    ]


def test_a_name_that_is_not_known_for_a_while_stands_for_what_it_did(caplog):
    names = Names()
    found = directory(names, "pool:7700")
    assert found.addresses() == found.addresses() == []
    assert sum("cannot resolve pool:7700" in text for text in caplog.messages) == 1
    names.hosts["pool"] = ["10.0.0.1"]
    assert found.addresses() == ["10.0.0.1:7700"]
    del names.hosts["pool"]
    assert found.addresses() == ["10.0.0.1:7700"]
    assert sum("cannot resolve pool:7700" in text for text in caplog.messages) == 2


@pytest.mark.parametrize("address", ["nowhere", "http://a:1", "host:0"])
def test_a_malformed_address_is_refused_at_once(address):
    with pytest.raises(InvalidInput, match="address"):
        directory(Names(), address)


def test_plain_text_leaves_the_machine_only_where_it_may():
    with pytest.raises(InvalidInput, match="without TLS"):
        WorkerDirectory(["pool:7700"], None, ChannelOptions())


def test_a_worker_with_addresses_of_both_families_is_one(monkeypatch):
    v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 7700))
    v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 7700, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [v6, v4])
    assert resolve_host("pool", 7700) == ["10.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [v6])
    assert resolve_host("pool", 7700) == ["fd00::1"]
