"""The other processes of a pod: channels to the orchestrator, evaluators and learners, opened once
and kept for every lease; and its workers, which are found by their names."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import grpc

from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer.worker.v1 import worker_service_pb2
from podracer.worker.v1.worker_service_pb2_grpc import WorkerServiceStub
from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_learner.config import LearnerConfig
from podracer_platform.rpc import (
    Address,
    ChannelOptions,
    FileToken,
    ShownTokens,
    open_channel,
    parse_address,
    translated_errors,
)
from podracer_platform.service import require_same_build

logger = logging.getLogger(__name__)

_INTERVAL_S = 2.0
_ANSWER_S = 2.0


def resolve_host(host: str, port: int) -> Sequence[str]:
    """All IP addresses of a host name, in order; of one family, as a worker has one of each. May
    take seconds. Raises OSError if the name cannot be resolved."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    wanted = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return sorted({str(place[0]) for family, _, _, _, place in found if family == wanted})


class WorkerDirectory:
    """Knows workers by their names, from round to round. `addresses` is for one thread, `open` for
    any.

    absent   addresses at which the last round found no free worker: the next one begins without
             them
    """

    def __init__(
        self,
        names: Sequence[str],
        shown: ShownTokens | None,
        options: ChannelOptions,
        resolve: Callable[[str, int], Sequence[str]] = resolve_host,
    ) -> None:
        """names: `unix:///path`, `host:port`, `dns:///host:port`. Does not connect. Raises
        InvalidInput for a malformed name, or one that requires TLS."""
        self._names = [parse_address(name) for name in names]
        self._shown, self._options, self._resolve = shown, options, resolve
        self._last: dict[Address, Sequence[str]] = {}
        self._silent: set[Address] = set()
        self.absent: frozenset[str] = frozenset()
        for name in names:
            open_channel(name, None, options).close()

    def __str__(self) -> str:
        return ", ".join(map(str, self._names))

    def addresses(self) -> list[str]:
        """The addresses of all current workers, each once. May take seconds. A name that cannot be
        resolved keeps its former addresses."""
        found: dict[str, None] = {}
        for name in self._names:
            found |= dict.fromkeys(
                self._resolved(name) if _stands_for_several(name) else [str(name)]
            )
        return list(found)

    def open(self, address: str) -> grpc.Channel:
        """A new channel to one of them, for the caller to close; it connects at the first call.

        Channels are not shared: a call on a channel that another thread is closing crashes the
        process. And a new channel connects at once, while a failed one waits for up to two seconds.
        """
        return open_channel(
            address, self._shown.at("worker", address) if self._shown else None, self._options
        )

    def _resolved(self, name: Address) -> Sequence[str]:
        try:
            hosts = self._resolve(name.host, name.port)
        except OSError as error:
            if name not in self._silent:
                logger.warning("cannot resolve %s: %s", name, error)
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


class WorkerDiscovery:
    """Finds workers in a thread; its results are at most a few seconds old. `known`: addresses of
    all workers, None before the first look."""

    def __init__(
        self, directory: WorkerDirectory, found: Callable[[], None], interval_s: float = _INTERVAL_S
    ) -> None:
        """`found` is called when workers are found or become free."""
        self._directory, self._found, self._interval_s = directory, found, interval_s
        self.known: Sequence[str] | None = None
        self._refused: set[str] = set()
        self._channels: dict[str, grpc.Channel] = {}  # its own, used in its own thread alone
        self._taken: frozenset[str] = frozenset()
        self._free: tuple[str, ...] = ()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="worker-discovery", daemon=True).start()

    def free(self) -> list[str]:
        """Workers that last reported room for a session."""
        return [address for address in self._free if address not in self._taken]

    def take(self, addresses: Collection[str]) -> None:
        """Note the workers that have a part: they are not asked any more. Workers taken before
        count as free once asked again."""
        self._free = tuple(address for address in self._free if address not in self._taken)
        self._taken = frozenset(addresses)

    def close(self) -> None:
        """Stop asking."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._ask()
            except Exception:
                logger.exception("worker discovery failed; retrying")
            self._over.wait(self._interval_s)
        self._keep_channels(())

    def _ask(self) -> None:
        known = self._directory.addresses()
        if known != self.known:
            self.known = known
            self._found()
        asked = [address for address in known if address not in self._taken]
        self._keep_channels(asked)
        calls = [
            (address, self._stub(address).GetStatus.future(_REQUEST, timeout=_ANSWER_S))
            for address in asked
        ]
        free = []
        for address, call in calls:
            try:
                with translated_errors(method="GetStatus"):
                    status = call.result()
                self._require_same_build(address, status)
            except PodracerError as error:
                logger.debug("worker %s: %s", address, error.message)
                continue
            if status.session_count < status.max_sessions:
                free.append(address)
        news = set(free) - set(self._free)
        self._free = tuple(free)
        if news and not self._over.is_set():
            self._found()

    def _stub(self, address: str) -> WorkerServiceStub:
        if address not in self._channels:
            self._channels[address] = self._directory.open(address)
        return WorkerServiceStub(self._channels[address])

    def _keep_channels(self, wanted: Collection[str]) -> None:
        for address in [address for address in self._channels if address not in wanted]:
            self._channels.pop(address).close()

    def _require_same_build(
        self, address: str, status: worker_service_pb2.GetStatusResponse
    ) -> None:
        try:
            require_same_build(status.build)
        except PreconditionFailed as error:
            if address not in self._refused:
                logger.error("worker %s will not be used: %s", address, error.message)
            self._refused.add(address)
            raise
        self._refused.discard(address)


_REQUEST = worker_service_pb2.GetStatusRequest()


class Peers:
    """`workers` finds workers by the settings; `evaluators` are in the order in which they are
    tried; `shown` makes their tokens; tensors may be shared through `folder`."""

    def __init__(self, config: LearnerConfig) -> None:
        """Connects at the first call. Raises InvalidInput for a malformed address or a missing
        token."""
        self._token = token = FileToken(config.tokens / "pod")
        self.folder = config.shared_folder()
        self._to_learners = config.channel_options("learner")
        self.orchestrator = open_channel(
            config.orchestrator, token, config.channel_options("orchestrator")
        )
        self.shown = shown = ShownTokens(token)
        self.workers = WorkerDirectory(config.workers, shown, config.channel_options("worker"))
        to_evaluators = config.channel_options("evaluator")
        self._evaluator_channels = [
            open_channel(address, shown.at("evaluator", address), to_evaluators)
            for address in config.evaluators
        ]
        self.evaluators = [
            evaluator_service_pb2_grpc.EvaluatorServiceStub(channel)
            for channel in self._evaluator_channels
        ]

    @contextmanager
    def learner(self, address: str) -> Iterator[grpc.Channel]:
        """A channel to another learner of the same agent, for one lease."""
        channel = open_channel(address, self._token, self._to_learners)
        try:
            yield channel
        finally:
            channel.close()

    def close(self) -> None:
        """Close all of them."""
        for channel in (self.orchestrator, *self._evaluator_channels):
            channel.close()
