"""One FOLLOW lease: the lead's round, without its own end, evaluations and checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from podracer.common.v1 import tensor_pb2
from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.fusion import Contribution, Fused
from podracer_core.training import EpochFusion, FusionTransport, Phases, TrainingSession
from podracer_learner.background import pause
from podracer_learner.fusion.lead import (
    NOT_A_LEAD,
    Answer,
    Ended,
    StateDecoder,
    contribution_requests,
    fusion_deadline_s,
)
from podracer_learner.lease import HeldLease
from podracer_learner.round import LearnerStatus, RoundMeter, RoundSetup
from podracer_platform.carriers import TensorEncoder
from podracer_platform.rpc import Backoff, StreamCall
from podracer_platform.service import own_build
from podracer_platform.telemetry import FUSION, are_recorded, current, span

logger = logging.getLogger(__name__)

FuseRequest = learner_service_pb2.FuseRequest

_LOST = (Unavailable, DeadlineExpired, Exhausted)
_POLL_S = 0.2
_REJOIN_S = (0.05, 1.0)

_REPORT_INTERVAL_S = 0.3


class RoundOver(PodracerError):
    """The lead has ended its round normally."""

    reason = "ROUND_OVER"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The options of a follower.

    rank        1 or more
    lead_fence  of the lead's lease
    coming_s    how long to wait until the lead leads: it has just leased, like this learner
    lost_s      how long to look for a lost lead
    check       is called while waiting and raises to cancel
    """

    rank: int
    lead_fence: int
    coming_s: float
    lost_s: float
    check: Callable[[], None]


class FusionFollower(FusionTransport):
    """A stream to the lead, opened again whenever it breaks, until patience ends. Used in the main
    thread.

    All methods raise RoundOver when the lead ends its round, Unavailable (LEAD_LOST) if it is lost,
    Fenced if it has another lease, PreconditionFailed (BUILD_MISMATCH) if it is of another build.
    """

    def __init__(
        self, stub: learner_service_pb2_grpc.LearnerServiceStub, options: FollowOptions
    ) -> None:
        self._stub, self._options = stub, options
        self._call: StreamCall[FuseRequest, Answer | Ended] | None = None
        self._encoder = TensorEncoder()

    def join(self) -> Fused:
        """Join the lead; returns the state to continue from."""
        return self._join(self._options.coming_s, until_it_leads=True)

    def exchange(self, contribution: Contribution) -> Fused | None:
        """See `FusionTransport`."""
        with FUSION.timed():
            return self._exchange(contribution)

    def _exchange(self, contribution: Contribution) -> Fused | None:
        self._send(contribution)
        while True:
            try:
                answer = self._receive()
            except _LOST as error:
                logger.warning("lost the lead: %s", error.message)
                joined = self._join(self._options.lost_s)
                if joined.epoch >= contribution.epoch:
                    return joined
                self._send(contribution)  # what it began from is what all others still go on from
                continue
            return answer.fused

    def poll(self) -> None:
        """Check whether the lead has ended its round, without waiting."""
        try:
            item = self._call.poll() if self._call is not None else None
        except _LOST:
            return  # `exchange` will find out, and come back
        if isinstance(item, Ended):
            raise RoundOver(item.reason)

    def close(self) -> None:
        """Leave; closing twice is harmless."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def _join(self, patience_s: float, *, until_it_leads: bool = False) -> Fused:
        deadline = time.monotonic() + patience_s
        waits = Backoff(*_REJOIN_S)
        while True:
            self.close()
            self._open()
            try:
                answer = self._receive()
                if answer.fused is None:
                    raise InvalidInput(
                        "the lead sent no state to a follower that joined", reason="BAD_FUSION"
                    )
                return answer.fused
            except (*_LOST, PreconditionFailed) as error:
                not_leading = isinstance(error, PreconditionFailed)
                if not_leading and (error.reason != NOT_A_LEAD or not until_it_leads):
                    raise
                if time.monotonic() > deadline:
                    message = f"the lead has not answered for {patience_s:.0f} s: {error.message}"
                    raise Unavailable(message, reason="LEAD_LOST") from error
            pause(next(waits), self._options.check)

    def _open(self) -> None:
        self._encoder = TensorEncoder()
        self._call = StreamCall(self._stub.Fuse, _Decoder().decode)
        join = learner_service_pb2.JoinFusion(
            build=own_build(),
            rank=self._options.rank,
            lead_fence=self._options.lead_fence,
            carriers=tensor_pb2.CarrierOffer(kinds=[tensor_pb2.CARRIER_KIND_INLINE]),
        )
        self._call.send(FuseRequest(join=join))

    def _send(self, contribution: Contribution) -> None:
        assert self._call is not None, "join comes before a contribution"
        for request in contribution_requests(contribution, self._encoder):
            self._call.send(request)

    def _receive(self) -> Answer:
        assert self._call is not None
        while True:
            self._options.check()
            if self._call.wait(_POLL_S):
                break
        item = self._call.receive(0.0)
        if isinstance(item, Ended):
            raise RoundOver(item.reason)
        return item


class _Decoder:
    """Responses -> answers, in the stream's receiving thread."""

    def __init__(self) -> None:
        self._decoder = StateDecoder()
        self._header = learner_service_pb2.FusionResult()
        self._joined = False

    def decode(self, response: learner_service_pb2.FuseResponse) -> Answer | Ended | None:
        kind = response.WhichOneof("message")
        match kind:
            case "joined" | "result":
                self._joined = kind == "joined"
                self._header = response.joined if self._joined else response.result
                if not self._header.parameters:
                    return Answer(None)
                return self._answer(
                    self._decoder.begin(self._header.parameters, self._header.normalizer)
                )
            case "chunk":
                return self._answer(self._decoder.add(response.chunk))
            case "end":
                return Ended(response.end.reason)
            case _:
                raise InvalidInput(f"a lead sent {kind or 'an empty message'}", reason="BAD_FUSION")

    def _answer(self, complete: bool) -> Answer | None:
        if not complete:
            return None
        fused = Fused(self._header.epoch, self._decoder.take(), tuple(self._header.ranks))
        return Answer(fused, self._joined)


def follow(
    held: HeldLease,
    setup: RoundSetup,
    channel: grpc.Channel,
    status: LearnerStatus,
    check: Callable[[], None],
    patience_s: float,
) -> None:
    """Train until the lead ends its round. `channel`: to the lead; `check` is called between
    updates and while waiting.

    patience_s: how long to wait until the lead leads. Raises the errors of `FusionFollower` and
    `check`."""
    work = held.lease.follow
    # A lead that is lost is looked for as long as it would wait for its followers.
    options = FollowOptions(
        work.rank, work.lead_fence, patience_s, fusion_deadline_s(work.train.fusion), check
    )
    follower = FusionFollower(learner_service_pb2_grpc.LearnerServiceStub(channel), options)
    algorithm = setup.algorithm
    fusion = EpochFusion(
        algorithm,
        algorithm.share(work.rank),
        follower,
        work.rank,
        work.train.fusion.interval_updates,
    )
    session = TrainingSession(
        algorithm,
        setup.source,
        None,
        setup.plan,
        began_at=held.received_at,
        fusion=fusion,
        phases=Phases(span if are_recorded() else None),
    )
    meter, reported_at = RoundMeter(session, algorithm, setup.source), 0.0
    try:
        fusion.begin(follower.join())
        logger.info(
            "follows %s as rank %d from fusion %d on", work.lead_address, work.rank, fusion.epoch
        )
        while True:
            check()
            follower.poll()
            session.step()
            if time.monotonic() - reported_at >= _REPORT_INTERVAL_S:
                reported_at = time.monotonic()
                progress = session.progress()
                meter.count(progress)
                status.training(
                    held.lease, progress, sum(progress.env_steps) / progress.elapsed_s, setup
                )
    except RoundOver as over:
        logger.info("the lead ended the round: %s", over.message)
    finally:
        current().set(rank=work.rank, **session.phases.attributes)
        follower.close()
