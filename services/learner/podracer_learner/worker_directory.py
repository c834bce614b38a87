"""Where workers are: addresses as they are given, and names that stand for several, which are resolved again and again
(a headless service of Kubernetes, the replicas of a compose service)."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence

import grpc

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
    """Knows workers by their names, from round to round. `addresses` is for one thread, `open` for any.

    absent   addresses at which the last round found nobody with time: the next one begins without them
    """

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
        self._last: dict[Address, Sequence[str]] = {}
        self._silent: set[Address] = set()
        self.absent: frozenset[str] = frozenset()
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

    def open(self, address: str) -> grpc.Channel:
        """A new channel to one of them, for the caller to close; it connects at the first call.

        Nobody shares one: a call on a channel that another thread closes at that moment takes the process with it. And
        a new one connects at once, where one that has failed would wait for up to two seconds.
        """
        return open_channel(address, self._token, self._options)

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
