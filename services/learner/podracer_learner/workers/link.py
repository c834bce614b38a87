"""The learner's side of one worker: its part of every member's environments, and the stream to
it."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import grpc
from torch import Tensor

from podracer.common.v1 import environment_pb2, tensor_pb2
from podracer.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from podracer_core.algorithms import Algorithm
from podracer_core.buffers import Rollout
from podracer_core.errors import (
    DataCorrupted,
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.training import WorldBreak
from podracer_learner.background import BackgroundTask
from podracer_learner.user_files import FetchedFiles, wants_files
from podracer_learner.workers.partition import Part, RolloutTimes
from podracer_platform.carriers import (
    CarrierFailed,
    CarrierOffering,
    Endpoint,
    SlotReader,
    TensorDecoder,
    TensorEncoder,
    carrier_name,
    chunk_messages,
)
from podracer_platform.rpc import Backoff, StreamCall
from podracer_platform.telemetry import current
from podracer_platform.training_messages import break_from_message

logger = logging.getLogger(__name__)

CollectRequest = worker_service_pb2.CollectRequest

_STATE = "environment_state/"
_REOPEN_S = (0.02, 1.0)
_RELEASE_S = 2.0  # a worker whose last session has just been closed may still be ending it
_MAX_DELIVERIES = 3  # to a worker that loses them again at once


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open, with this environment; `received_at` on the monotonic clock."""

    environment: environment_pb2.EnvironmentDescription
    received_at: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rollout of one worker's environments, and their states after it (empty if not requested).

    live_environments   of all members together, those with at least one valid row
    received_at         on the monotonic clock
    processor_s         processor seconds of the worker for it
    breaks              what broke in it; at most one of each kind
    """

    rollout: Rollout
    environment_state: dict[str, Tensor]
    live_environments: int
    received_at: float
    processor_s: float
    breaks: Sequence[WorldBreak] = ()


@dataclass(frozen=True, slots=True)
class Weights:
    """The messages with the actor of one version, which counts from 1 there."""

    version: int
    messages: Sequence[CollectRequest]

    @classmethod
    def of(cls, algorithm: Algorithm, encoder: TensorEncoder) -> Weights:
        """The weights of an algorithm's newest actor."""
        tensors, chunks = encoder.encode(algorithm.actor_state())
        version = algorithm.version + 1
        update = worker_service_pb2.ActorUpdate(
            policy_version=version, normalizer_version=version, tensors=tensors
        )
        header = CollectRequest(actor_update=update)
        return cls(version, [header, *chunk_messages(CollectRequest, chunks)])


class CollectStream:
    """A session with a worker.

    send   never waits
    poll   the next item, if one has arrived; raises the error that ended the stream
    """

    def __init__(
        self,
        address: str,
        channel: grpc.Channel,
        opening: worker_service_pb2.OpenCollect,
        endpoint: Endpoint,
        arrived: Callable[[], None],
        *,
        inline_only: bool,
    ) -> None:
        """Opens it, without waiting; `channel` is closed with it. `arrived` is called, in any
        thread, when `poll` would find something."""
        self._channel = channel
        self._offering = CarrierOffering(
            endpoint, opening.max_in_flight or 1, inline_only=inline_only
        )
        opening.carriers.CopyFrom(self._offering.message)
        opening.traceparent = current().traceparent
        decoder = _Decoder(address, self._offering)
        stub = worker_service_pb2_grpc.WorkerServiceStub(channel)
        self._call: StreamCall[CollectRequest, Arrival | Opened] = StreamCall(
            stub.Collect, decoder.decode, arrived
        )
        decoder.give_back = _slot_returner(self._call)
        self.send, self.poll = self._call.send, self._call.poll
        self.send(CollectRequest(open=opening))

    def close(self) -> None:
        """End the session."""
        self._call.close()
        self._channel.close()
        self._offering.close()


class _Decoder:
    """Responses -> items, in the stream's receiving thread."""

    def __init__(self, address: str, offering: CarrierOffering) -> None:
        """`give_back` sends a slot's return; it must be set before the first item arrives."""
        self._address, self._offering = address, offering
        self.give_back: Callable[[tensor_pb2.SlotReturn], None] | None = None
        self._tensors = TensorDecoder()
        self._batch = worker_service_pb2.RolloutBatch()

    def decode(self, response: worker_service_pb2.CollectResponse) -> Arrival | Opened | None:
        match response.WhichOneof("message"):
            case "opened":
                self._settle(response.opened.carrier)
                return Opened(response.opened.environment, time.monotonic())
            case "rollout":
                self._batch = response.rollout
                tensors = dict(response.rollout.tensors)
                tensors |= {
                    _STATE + name: one for name, one in response.rollout.environment_state.items()
                }
                return self._arrival(self._tensors.begin(tensors))
            case "chunk":
                return self._arrival(self._tensors.add(response.chunk))
            case "draining":
                raise Unavailable(response.draining.reason, reason="DRAINING")
            case _:
                raise InvalidInput("a worker sent an empty message")

    def _settle(self, choice: tensor_pb2.CarrierChoice) -> None:
        staging = self._offering.settle(choice)
        logger.info("worker %s: rollouts come by %s", self._address, carrier_name(choice.kind))
        if staging is not None and self.give_back is not None:
            self._tensors.use_slots(SlotReader(staging), self.give_back)

    def _arrival(self, complete: bool) -> Arrival | None:
        if not complete:
            return None
        batch, tensors = self._batch, self._tensors.take()
        if not batch.policy_versions:
            raise InvalidInput("a rollout came without the version that acted")
        state = {
            name.removeprefix(_STATE): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(_STATE)
        }
        return Arrival(
            Rollout.from_tensors(tensors, min(batch.policy_versions) - 1),
            state,
            batch.live_environments,
            time.monotonic(),
            batch.processor_s,
            [break_from_message(each) for each in batch.breaks],
        )


def _slot_returner(
    call: StreamCall[CollectRequest, Arrival | Opened],
) -> Callable[[tensor_pb2.SlotReturn], None]:
    """Sends on the call while there is one. What it decodes holds the stream's memory: in a circle
    it would stay mapped long after the session."""
    reference = weakref.ref(call)

    def give_back(slot: tensor_pb2.SlotReturn) -> None:
        alive = reference()
        if alive is not None:
            alive.send(CollectRequest(slot_return=slot))

    return give_back


Opening = Callable[[Part, int], worker_service_pb2.OpenCollect]
"""Makes the first message for a part; its other argument: the rollouts that have arrived and are
unused."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The options of all links of a learner.

    opening    makes the first message
    files      of the environment, for a worker that lacks them
    check      raises PreconditionFailed for a worker with another environment than the learner
               expects
    silence_s  how long to wait for a message of a connected worker
    arrived    called, in any thread, when `poll` has something to do
    endpoint   the carriers for rollouts
    with_environment_state  whether rollouts include the environments' states
    """

    opening: Opening
    files: FetchedFiles
    check: Callable[[environment_pb2.EnvironmentDescription], None]
    silence_s: float
    arrived: Callable[[], None]
    endpoint: Endpoint
    with_environment_state: bool = False


class LinkState(Enum):
    """A state of a link. In all but `OPENING` and `OPEN` it has no stream."""

    OPENING = auto()
    """The worker is asked for a session."""
    OPEN = auto()
    DELIVERING = auto()
    """The worker is sent the files that it lacks, and then asked again."""
    LOST = auto()
    """The worker is asked again after a pause."""
    REFUSED = auto()
    """The worker is unsuitable: another build, another environment."""
    CLOSED = auto()


_NEXT: Mapping[LinkState, Collection[LinkState]] = {
    LinkState.OPENING: {*LinkState},
    LinkState.OPEN: {*LinkState},
    LinkState.DELIVERING: {*LinkState} - {LinkState.OPEN},
    LinkState.LOST: {*LinkState} - {LinkState.OPEN},
    LinkState.REFUSED: {LinkState.CLOSED},
    LinkState.CLOSED: {LinkState.CLOSED},
}


class WorkerLink:
    """A session that is opened again whenever it breaks. It never blocks: its poller waits.

    part        the first environment within each member, and their number
    state       see `LinkState`
    arrivals    rollouts that have arrived and were not taken yet, oldest first
    lost_since  since when no session is open, on the monotonic clock, if one was lost or refused
    problem     the last error
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
        self._created_at = time.monotonic()
        self.times = RolloutTimes()
        self.arrivals: deque[Arrival] = deque()
        self.late = False
        self.lost_since: float | None = None
        self.problem: PodracerError | None = None
        self._opened_at: float | None = None
        self._version = -1  # of the weights that the worker has
        self.state = LinkState.OPENING
        self._connect()

    @property
    def environments(self) -> int:
        """Environments of each member in the worker's part."""
        return self.part[1]

    @property
    def opened(self) -> bool:
        """Whether the session is open."""
        return self.state is LinkState.OPEN

    @property
    def refused(self) -> bool:
        """Whether the worker is unsuitable."""
        return self.state is LinkState.REFUSED

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
        worker would have.
        """
        try:
            if self._delivery is not None:  # even if its worker was given up meanwhile
                if not self._delivery.done:
                    return
                delivery, self._delivery = self._delivery, None
                delivery.result()
                self._connect()
            elif self.state is LinkState.LOST and time.monotonic() >= self._retry_at:
                self._connect()
            if self._stream is None:
                return
            while (item := self._stream.poll()) is not None:
                self._take(item)
            owes = self.times.outstanding or not self.opened
            if owes and self.age_s(time.monotonic()) > self._options.silence_s:
                self.lose_silent(self._options.silence_s)
        except CarrierFailed as error:
            if self._inline_only:
                self._refuse(error)
                return
            text = "worker %s: %s; using inline transfer for its rollouts"
            logger.warning(text, self.address, error.message)
            self._inline_only = True
            self._connect()
        except PreconditionFailed as error:
            if wants_files(error) and self._deliveries < _MAX_DELIVERIES:
                self._bring_files()
            else:
                self._refuse(error)
        except DataCorrupted as error:
            self._refuse(error)
        except (Unavailable, Exhausted, DeadlineExpired) as error:
            self._lose(error)

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

    def lose_silent(self, limit_s: float) -> None:
        """Give up the session, which has been silent for `limit_s`; it is opened again later."""
        self._lose(DeadlineExpired(f"no message from it for {limit_s:.0f} s"))

    def close(self) -> None:
        """End the session for good."""
        self._become(LinkState.CLOSED)
        self.arrivals.clear()

    def _become(self, state: LinkState) -> None:
        assert state in _NEXT[self.state], f"{self.state} -> {state}"
        self.state = state
        if state is LinkState.OPEN:
            return
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._version = -1
        self.times.forget_asked()

    def _connect(self) -> None:
        self._become(LinkState.OPENING)
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

    def _take(self, item: Arrival | Opened) -> None:
        if isinstance(item, Opened):
            self._options.check(item.environment)
            self._become(LinkState.OPEN)
            self._deliveries = 0
            self._opened_at = self.times.heard_at = item.received_at
            if self.lost_since is not None:
                logger.info("worker %s is back", self.address)
                self.lost_since = None
            return
        there = item.rollout.num_envs
        if not self.times.outstanding:
            raise InvalidInput("a worker sent a rollout that was not requested")
        if there != self.environments:
            raise InvalidInput(f"a rollout has {there} environments, expected {self.environments}")
        self.times.arrive(item.received_at)
        self._waits.reset()
        self.arrivals.append(item)

    def _lose(self, error: PodracerError) -> None:
        self._become(LinkState.LOST)
        now = time.monotonic()
        is_ending = isinstance(error, Exhausted) and now - self._created_at < _RELEASE_S
        if self.lost_since is None and not is_ending:
            logger.warning("worker %s: %s", self.address, error.message)
            self.lost_since = now
        self.problem = error.with_traceback(None)  # which holds the lost session and its memory
        self._retry_at = now + next(self._waits)

    def _refuse(self, error: PodracerError) -> None:
        logger.error("worker %s will not be used: %s", self.address, error.message)
        self._become(LinkState.REFUSED)
        self.problem = error.with_traceback(None)
        self.lost_since = time.monotonic()

    def _bring_files(self) -> None:
        """Send the worker its missing files; then the session is opened again."""
        self._become(LinkState.DELIVERING)
        self._deliveries += 1
        # Another thread delivers, so this channel is never closed here: it is freed with its last
        # reference.
        stub = worker_service_pb2_grpc.WorkerServiceStub(self._open_channel())
        put = worker_service_pb2.PutFileRequest
        self._delivery = self._options.files.deliver(stub.PutFile, put)
        self.times.heard_at = time.monotonic()
