"""Where workers are: addresses as they are given, and names that stand for several, which are resolved again and again
(a headless service of Kubernetes, the replicas of a compose service)."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Collection, Sequence

import grpc

from podracer.worker.v1.worker_service_pb2_grpc import WorkerServiceStub
from podracer_core.rpc.address import Address, parse_address
from podracer_core.rpc.channel import ChannelOptions, open_channel
from podracer_core.rpc.tokens import TokenSource

__all__ = ["WorkerDirectory", "resolve_host"]

logger = logging.getLogger(__name__)


def resolve_host(host: str, port: int) -> Sequence[str]:
    """All IP addresses of a host name, in order; of one family, for a worker has one of each. May take seconds. Raises
    OSError where the name stands for nothing."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    wanted = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return sorted({str(place[0]) for family, _, _, _, place in found if family == wanted})


class WorkerDirectory:
    """Keeps a channel to each worker that somebody wanted. Safe to use from several threads."""

    def __init__(
        self,
        names: Sequence[str],
        token: TokenSource | None,
        options: ChannelOptions,
        resolve: Callable[[str, int], Sequence[str]] = resolve_host,
    ) -> None:
        """names: `unix:///path`, `host:port`, `dns:///host:port`. Connects to nobody. Raises InvalidInput for one that
        is malformed, or that plaintext may not go to."""
        self._names = [parse_address(name) for name in names]
        self._token, self._options, self._resolve = token, options, resolve
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._last: dict[Address, Sequence[str]] = {}
        self._silent: set[Address] = set()
        for name in names:
            open_channel(name, token, options).close()

    def __str__(self) -> str:
        return ", ".join(map(str, self._names))

    def addresses(self) -> list[str]:
        """Of all workers there are now, each once. May take seconds. A name that cannot be resolved stands for what it
        stood for before."""
        found: dict[str, None] = {}
        for name in self._names:
            found |= dict.fromkeys(self._resolved(name) if _stands_for_several(name) else [str(name)])
        return list(found)

    def stub(self, address: str) -> WorkerServiceStub:
        """To call one of them by; connects at the first call."""
        with self._lock:
            if address not in self._channels:
                self._channels[address] = open_channel(address, self._token, self._options)
            return WorkerServiceStub(self._channels[address])

    def forget(self, besides: Collection[str]) -> None:
        """Close the channels to all others."""
        with self._lock:
            for address in [address for address in self._channels if address not in besides]:
                self._channels.pop(address).close()

    def close(self) -> None:
        """Close all channels."""
        self.forget(())

    def _resolved(self, name: Address) -> Sequence[str]:
        try:
            hosts = self._resolve(name.host, name.port)
        except OSError as error:
            if name not in self._silent:
                logger.warning("%s cannot be resolved: %s", name, error)
            self._silent.add(name)
            return self._last.get(name, ())
        self._silent.discard(name)
        self._last[name] = [str(Address(host=host, port=name.port)) for host in hosts]
        return self._last[name]


def _stands_for_several(name: Address) -> bool:
    if name.is_unix or name.host == "localhost":
        return False
    try:
        ipaddress.ip_address(name.host)
    except ValueError:
        return True
    return False
