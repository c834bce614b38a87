"""Looks around for workers, in a thread of its own: who there is, and which of those without a part have time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

import grpc

from podracer.worker.v1 import worker_service_pb2
from podracer.worker.v1.worker_service_pb2_grpc import WorkerServiceStub
from podracer_core.errors import PodracerError, PreconditionFailed
from podracer_core.rpc.status import translated_errors
from podracer_core.service.build import require_same_build
from podracer_learner.worker_directory import WorkerDirectory

__all__ = ["WorkerScout"]

logger = logging.getLogger(__name__)

_INTERVAL_S = 2.0
_ANSWER_S = 2.0


class WorkerScout:
    """What it knows is at most a few seconds old. `known`: addresses of all workers; None as long as nobody has
    looked."""

    def __init__(self, directory: WorkerDirectory, found: Callable[[], None], interval_s: float = _INTERVAL_S) -> None:
        """`found` is called when there is something new."""
        self._directory, self._found, self._interval_s = directory, found, interval_s
        self.known: Sequence[str] | None = None
        self._refused: set[str] = set()
        self._channels: dict[str, grpc.Channel] = {}  # its own, used in its own thread alone
        self._taken: frozenset[str] = frozenset()
        self._free: tuple[str, ...] = ()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="worker-scout", daemon=True).start()

    def free(self) -> list[str]:
        """Workers that would take a session, as far as is known."""
        return [address for address in self._free if address not in self._taken]

    def take(self, addresses: Collection[str]) -> None:
        """These have a part, and are asked no more; nobody else is to be believed free before it was asked again."""
        self._free = tuple(address for address in self._free if address not in self._taken)
        self._taken = frozenset(addresses)

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._look()
            except Exception:
                logger.exception("looking for workers failed")
            self._over.wait(self._interval_s)
        self._keep_channels(())

    def _look(self) -> None:
        known = self._directory.addresses()
        if known != self.known:
            self.known = known
            self._found()
        asked = [address for address in known if address not in self._taken]
        self._keep_channels(asked)
        calls = [(address, self._stub(address).GetStatus.future(_REQUEST, timeout=_ANSWER_S)) for address in asked]
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

    def _require_same_build(self, address: str, status: worker_service_pb2.GetStatusResponse) -> None:
        try:
            require_same_build(status.build)
        except PreconditionFailed as error:
            if address not in self._refused:
                logger.error("worker %s is left out: %s", address, error.message)
            self._refused.add(address)
            raise
        self._refused.discard(address)


_REQUEST = worker_service_pb2.GetStatusRequest()
