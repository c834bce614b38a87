"""One worker as the learner sees it: its part of every member's environments, and the stream to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from podracer.common.v1 import environment_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.buffers.rollout import Rollout
from podracer_core.carriers.inline import TensorDecoder
from podracer_core.errors import DeadlineExpired, Exhausted, InvalidInput, PreconditionFailed, Unavailable
from podracer_core.rpc.backoff import Backoff
from podracer_core.rpc.streams import StreamCall
from podracer_learner.user_files import FetchedFiles, wants_files

__all__ = ["Arrival", "Patience", "WorkerLink"]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
CollectRequest = worker_service_pb2.CollectRequest

STATE_PREFIX = "environment_state/"
_LOST = (Unavailable, Exhausted, DeadlineExpired)
_POLL_S = 0.2
_REOPEN_S = (0.02, 1.0)
_MAX_DELIVERIES = 3  # to a worker that loses them again at once


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rollout of one worker's environments, and where they stand after it (empty where that was not asked for)."""

    rollout: Rollout
    environment_state: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a peer.

    lost_s     for one that has gone, until it is back
    silence_s  for one that is there, until it says something
    check      is called while waiting; raises to give up
    """

    lost_s: float
    silence_s: float
    check: Callable[[], None]


class WorkerLink:
    """A session that is opened again whenever it breaks, until patience ends."""

    def __init__(
        self,
        address: str,
        stub: worker_service_pb2_grpc.WorkerServiceStub,
        part: tuple[int, int],
        opening: Callable[[int, int], worker_service_pb2.OpenCollect],
        files: FetchedFiles,
        patience: Patience,
    ) -> None:
        """`part`: first environment within each member, and how many; `opening` makes such a part's first message.
        `files` are those of the environment, for a worker that lacks them."""
        self.address, self.first, self.count = address, *part
        self._stub, self._opening, self._files, self._patience = stub, opening, files, patience
        self._call: StreamCall[worker_service_pb2.CollectRequest, Arrival | worker_service_pb2.CollectOpened] | None
        self._call = None
        self._again: Callable[[], Sequence[CollectRequest]] | None = None

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._call is not None

    def connect(self) -> None:
        """Open the session; the answer comes later."""
        self._call = StreamCall(self._stub.Collect, _Decoder().decode)
        opening = self._opening(self.first, self.count)
        self._call.send(worker_service_pb2.CollectRequest(open=opening))

    def ask(self, request: Sequence[CollectRequest], again: Callable[[], Sequence[CollectRequest]]) -> None:
        """Ask for one rollout. Should the worker be lost before it comes, it is asked `again`, with newer weights."""
        self._again = again
        if self._call is not None:
            for message in request:
                self._call.send(message)

    def opened(self) -> environment_pb2.EnvironmentDescription:
        """Wait until the session is open. Raises UserCodeFailed where the environment does not start, Unavailable
        (WORKER_LOST) where patience ends."""
        return self._receive(worker_service_pb2.CollectOpened).environment

    def rollout(self) -> Arrival:
        """Wait for the rollout that was asked for. Errors as of `opened`."""
        arrival = self._receive(Arrival)
        self._again = None
        return arrival

    def close(self) -> None:
        """End the session."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def _receive(self, kind: type[Item]) -> Item:
        lost_at: float | None = None
        waits = Backoff(*_REOPEN_S)
        while True:
            try:
                item = self._next_item()
            except _LOST as error:
                now = time.monotonic()
                if lost_at is None:
                    logger.warning("worker %s: %s", self.address, error.message)
                    lost_at = now
                self.close()
                if now - lost_at > self._patience.lost_s:
                    raise Unavailable(
                        f"worker {self.address} has been lost for {self._patience.lost_s:.0f} s: {error.message}",
                        reason="WORKER_LOST",
                        worker=self.address,
                    ) from error
                self._pause(next(waits))
                self.connect()
                continue
            if isinstance(item, kind):
                return item
            if self._again is not None:  # open again, while a rollout is waited for
                logger.info("worker %s is back", self.address)
                self.ask(self._again(), self._again)

    def _next_item(self) -> Arrival | worker_service_pb2.CollectOpened:
        if self._call is None:
            raise Unavailable("not connected")
        deadline = time.monotonic() + self._patience.silence_s
        deliveries = 0
        while True:
            self._patience.check()
            remaining_s = deadline - time.monotonic()
            try:
                return self._call.receive(min(_POLL_S, remaining_s))
            except DeadlineExpired:
                if remaining_s <= _POLL_S:
                    raise
            except PreconditionFailed as error:
                if not wants_files(error) or deliveries == _MAX_DELIVERIES:
                    raise
                deliveries += 1
                self._bring_files()
                deadline = time.monotonic() + self._patience.silence_s

    def _bring_files(self) -> None:
        """Send the worker what it lacks, and open the session once more."""
        self.close()
        self._files.deliver(self._stub.PutFile, worker_service_pb2.PutFileRequest).result(self._patience.check)
        self.connect()

    def _pause(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            self._patience.check()
            time.sleep(min(remaining_s, _POLL_S))


class _Decoder:
    """Responses -> items, in the stream's receiving thread."""

    def __init__(self) -> None:
        self._tensors = TensorDecoder()
        self._batch: worker_service_pb2.RolloutBatch | None = None

    def decode(self, response: worker_service_pb2.CollectResponse) -> Arrival | worker_service_pb2.CollectOpened | None:
        match response.WhichOneof("message"):
            case "opened":
                return response.opened
            case "rollout":
                self._batch = response.rollout
                tensors = dict(response.rollout.tensors)
                tensors |= {STATE_PREFIX + name: one for name, one in response.rollout.environment_state.items()}
                return self._arrival(self._tensors.begin(tensors))
            case "chunk":
                return self._arrival(self._tensors.add(response.chunk))
            case "draining":
                raise Unavailable(response.draining.reason, reason="DRAINING")
            case _:
                raise InvalidInput("a worker sent an empty message")

    def _arrival(self, complete: bool) -> Arrival | None:
        if not complete:
            return None
        if self._batch is None or not self._batch.policy_versions:
            raise InvalidInput("a rollout came without a header, or without the version that acted")
        tensors = self._tensors.take()
        state = {name.removeprefix(STATE_PREFIX): tensors.pop(name) for name in list(tensors) if _is_state(name)}
        rollout = Rollout.from_tensors(tensors, min(self._batch.policy_versions) - 1)
        return Arrival(rollout, state)


def _is_state(name: str) -> bool:
    return name.startswith(STATE_PREFIX)
