"""The learner's side of one worker: its part of every member's environments, and the stream to
it."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from podracer.common.v1 import environment_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.carriers.negotiation import Endpoint
from podracer_core.carriers.staging import CarrierFailed
from podracer_core.errors import (
    DataCorrupted,
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.rpc.backoff import Backoff
from podracer_core.telemetry.spans import current
from podracer_learner.background import BackgroundTask
from podracer_learner.user_files import FetchedFiles, wants_files
from podracer_learner.workers.collect_stream import Arrival, CollectStream, Opened
from podracer_learner.workers.rollouts import Weights
from podracer_learner.workers.shares import Part, RolloutTimes

logger = logging.getLogger(__name__)

CollectRequest = worker_service_pb2.CollectRequest

_LOST = (Unavailable, Exhausted, DeadlineExpired)
_REOPEN_S = (0.02, 1.0)
_RELEASE_S = 2.0  # a worker whose last session has just been closed may still be ending it
_MAX_DELIVERIES = 3  # to a worker that loses them again at once


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The options of all links of a learner.

    opening    makes the first message for a part; its other argument: the rollouts that have
               arrived and are unused
    files      of the environment, for a worker that lacks them
    check      raises PreconditionFailed for a worker with another environment than the learner
               expects
    silence_s  how long to wait for a message of a connected worker
    arrived    called, in any thread, when `poll` has something to do
    endpoint   the carriers for rollouts
    with_environment_state  whether rollouts include the environments' states
    """

    opening: Callable[[Part, int], worker_service_pb2.OpenCollect]
    files: FetchedFiles
    check: Callable[[environment_pb2.EnvironmentDescription], None]
    silence_s: float
    arrived: Callable[[], None]
    endpoint: Endpoint
    with_environment_state: bool = False


class WorkerLink:
    """A session that is opened again whenever it breaks. It never blocks: its poller waits.

    part        the first environment within each member, and their number
    arrivals    rollouts that have arrived and were not taken yet, oldest first
    opened      whether the session is open
    lost_since  since when it is lost, on the monotonic clock; None otherwise
    problem     the last error
    refused     the worker is unsuitable: another build, another environment
    late        its last rollout was late
    """

    def __init__(
        self,
        address: str,
        open_channel: Callable[[], grpc.Channel],
        part: Part,
        options: LinkOptions,
    ) -> None:
        """Opens the session; the answer comes later. `open_channel` is called whenever it is
        opened."""
        self.address, self.part = address, part
        self._open_channel, self._options = open_channel, options
        self._inline_only = False
        self._stream: CollectStream | None = None
        self._delivery: BackgroundTask[None] | None = None
        self._deliveries = 0
        self._waits = Backoff(*_REOPEN_S)
        self._retry_at = 0.0
        self.created_at = time.monotonic()
        self.times = RolloutTimes()
        self.arrivals: deque[Arrival] = deque()
        self.opened = self.late = self.refused = False
        self.lost_since: float | None = None
        self.problem: PodracerError | None = None
        self._opened_at: float | None = None
        self._version = -1
        self._connect()

    @property
    def environments(self) -> int:
        """Environments of each member in the worker's part."""
        return self.part[1]

    @property
    def is_busy(self) -> bool:
        """Whether requested rollouts have not arrived yet."""
        return self.times.outstanding > 0

    @property
    def lived_s(self) -> float:
        """How long the last session was open until it was lost; infinite if none was opened or
        lost."""
        if self._opened_at is None or self.lost_since is None:
            return math.inf
        return self.lost_since - self._opened_at

    @property
    def rate(self) -> float | None:
        """Environments per second in recent rollouts; None before a few have arrived."""
        usual_s = self.times.usual_duration_s
        return None if usual_s is None else self.environments / usual_s

    def age_s(self, now: float) -> float:
        """How long the learner has waited for the worker's answer to the opening, or its next
        rollout."""
        return self.times.age_s(now) if self.opened else now - self.times.heard_at

    def poll(self) -> None:
        """Take arrived items, send files, and reopen the session if it is time.

        Raises UserCodeFailed if the environment does not start or fails, and other errors that any
        worker would have."""
        try:
            if self._delivery is not None:
                if not self._delivery.done:
                    return
                delivery, self._delivery = self._delivery, None
                delivery.result()
                self._connect()
            if self._stream is None:
                if self.refused or time.monotonic() < self._retry_at:
                    return
                self._connect()
            while self._stream is not None and (item := self._stream.poll()) is not None:
                self._take(item)
            if self.age_s(time.monotonic()) > self._options.silence_s and (
                self.times.outstanding or not self.opened
            ):
                self.lose(
                    DeadlineExpired(f"no message from it for {self._options.silence_s:.0f} s")
                )
        except CarrierFailed as error:
            if self._inline_only:
                self._refuse(error)
                return
            logger.warning(
                "worker %s: %s; using inline transfer for its rollouts", self.address, error.message
            )
            self._inline_only = True
            self._connect()
        except PreconditionFailed as error:
            if wants_files(error) and self._deliveries < _MAX_DELIVERIES:
                self._bring_files()
            else:
                self._refuse(error)
        except DataCorrupted as error:
            self._refuse(error)
        except _LOST as error:
            self.lose(error)

    def keep_busy(self, weights: Weights, rollouts: int) -> None:
        """Request rollouts until `rollouts` are here or in progress, with these weights or newer
        ones."""
        if self._stream is None:
            return
        if self._version != weights.version:
            self._version = weights.version
            for message in weights.messages:
                self._stream.send(message)
        while len(self.arrivals) + self.times.outstanding < rollouts:
            order = worker_service_pb2.RolloutRequest(
                count=1,
                with_environment_state=self._options.with_environment_state,
                traceparent=current().traceparent,
            )
            self._stream.send(CollectRequest(rollout_request=order))
            self.times.ask()

    def lose(self, error: PodracerError) -> None:
        """Give up the session; it is opened again later."""
        self._hang_up()
        now = time.monotonic()
        ending = isinstance(error, Exhausted) and now - self.created_at < _RELEASE_S
        if self.lost_since is None and not ending:
            logger.warning("worker %s: %s", self.address, error.message)
            self.lost_since = now
        self.problem = error.with_traceback(None)  # which holds the lost session and its memory
        self._retry_at = now + next(self._waits)

    def close(self) -> None:
        """End the session for good."""
        self._hang_up()
        self.arrivals.clear()

    def _connect(self) -> None:
        self._hang_up()
        if self._options.with_environment_state:
            # they come again, from where the environments are known to have stood
            self.arrivals.clear()
        self._stream = CollectStream(
            self.address,
            self._open_channel(),
            self._options.opening(self.part, len(self.arrivals)),
            self._options.endpoint,
            self._options.arrived,
            inline_only=self._inline_only,
        )
        self.times.heard_at = time.monotonic()

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self.opened, self._version = False, -1
        self.times.forget_asked()

    def _take(self, item: Arrival | Opened) -> None:
        if isinstance(item, Opened):
            self._options.check(item.environment)
            self.opened, self._deliveries = True, 0
            self._opened_at = self.times.heard_at = item.received_at
            if self.lost_since is not None:
                logger.info("worker %s is back", self.address)
                self.lost_since = None
            return
        if not self.times.outstanding:
            raise InvalidInput("a worker sent a rollout that was not requested")
        if item.rollout.num_envs != self.environments:
            raise InvalidInput(
                f"a rollout has {item.rollout.num_envs} environments, expected {self.environments}"
            )
        self.times.arrive(item.received_at)
        self._waits.reset()
        self.arrivals.append(item)

    def _refuse(self, error: PodracerError) -> None:
        logger.error("worker %s will not be used: %s", self.address, error.message)
        self._hang_up()
        self.problem, self.refused = error.with_traceback(None), True
        self.lost_since = time.monotonic()

    def _bring_files(self) -> None:
        """Send the worker its missing files; then the session is opened again."""
        self._hang_up()
        self._deliveries += 1
        # Another thread delivers, so this channel is never closed here: it is freed with its last
        # reference.
        stub = worker_service_pb2_grpc.WorkerServiceStub(self._open_channel())
        self._delivery = self._options.files.deliver(
            stub.PutFile, worker_service_pb2.PutFileRequest
        )
        self.times.heard_at = time.monotonic()
