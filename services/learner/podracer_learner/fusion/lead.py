"""The lead of a fusion: collects the followers' contributions, fuses, and answers them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.errors import Fenced, InvalidInput
from podracer_core.fusion.fuse import LEAD, FusionTable
from podracer_core.fusion.fusion import FusionOptions, fusion_class
from podracer_core.fusion.state import Contribution, Fused
from podracer_core.sections.pod import Fusion
from podracer_core.training.epochs import EpochFusion, FusionTransport
from podracer_platform.messages.sections import seconds_from_duration
from podracer_platform.rpc.streams import Outbox
from podracer_platform.telemetry.metrics import FUSION

logger = logging.getLogger(__name__)

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a follower: the state to continue from, after it `joined` or contributed.
    `fused` is None if nothing was fused."""

    fused: Fused | None
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The round is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeadOptions:
    """The options of a lead.

    fence      of its lease: followers repeat it
    followers  ranks 1 to this are admitted
    check      is called while waiting and raises to cancel
    in_a_hurry whether to stop waiting, as the round shall end
    ends_at    when the round's time is up, on the monotonic clock
    """

    fence: int
    followers: int
    check: Callable[[], None]
    in_a_hurry: Callable[[], bool]
    ends_at: float = math.inf


class FusionLead(FusionTransport):
    """Serves each follower's stream in its own thread. The main thread trains, and waits only in
    `exchange`.

    Each follower has an outbox for the answers of its stream. A new stream of the same rank
    replaces the former one: its follower has lost the connection, even if this side has not noticed
    it."""

    def __init__(self, table: FusionTable, options: LeadOptions) -> None:
        self._table, self._options = table, options
        self._changed = threading.Condition()
        self._outboxes: dict[int, Outbox[Answer | Ended]] = {}
        self._ended: Ended | None = None
        self._answered_at = time.monotonic()

    @property
    def followers(self) -> int:
        """The number of joined followers."""
        with self._changed:
            return len(self._outboxes)

    @property
    def brought(self) -> frozenset[int]:
        """Ranks whose contributions wait for the lead's own."""
        with self._changed:
            return self._table.brought

    def exchange(self, contribution: Contribution) -> Fused | None:
        """See `FusionTransport`."""
        with FUSION.timed():
            return self._exchange(contribution)

    def _exchange(self, contribution: Contribution) -> Fused | None:
        """Waits for the contributions of all joined learners, or until the
        deadline.

        Once the round's time is up, the wait is at most as long as this learner's own epoch:
        learners that are as fast still count, and slower ones do not delay the end of the round by
        a deadline."""
        growth = contribution.growth.to("cpu")
        own = Contribution(contribution.rank, contribution.epoch, contribution.samples, growth)
        with self._changed:
            now = time.monotonic()
            self._table.open(own, now, max(self._options.ends_at, now + (now - self._answered_at)))
            while (
                decision := self._table.decide(time.monotonic(), at_once=self._options.in_a_hurry())
            ) is None:
                self._options.check()
                self._changed.wait(min(_POLL_S, self._table.remaining_s(time.monotonic())))
            for rank in decision.answered:
                if rank != LEAD:
                    self._outboxes[rank].put(Answer(decision.fused))
            self._answered_at = time.monotonic()
        if decision.fused is None:
            logger.info(
                "fusion %d: deadline passed with ranks %s only",
                contribution.epoch,
                decision.answered,
            )
        return decision.fused

    def join(self, rank: int, fence: int, outbox: Outbox[Answer | Ended]) -> None:
        """A follower joins. Raises Fenced for another lease's fence, InvalidInput for an invalid
        rank."""
        if fence != self._options.fence:
            raise Fenced(
                f"a follower joined with fence {fence}, this lead's fence is {self._options.fence}",
                fence=fence,
            )
        if not LEAD < rank <= self._options.followers:
            raise InvalidInput(
                f"a follower joined with rank {rank}, expected 1 to {self._options.followers}",
                reason="BAD_FUSION",
            )
        with self._changed:
            if self._ended is not None:
                outbox.put(self._ended)
                outbox.close()
                return
            before = self._outboxes.get(rank)
            if before is not None:
                before.close()
            self._outboxes[rank] = outbox
            self._table.join(rank)
            outbox.put(Answer(self._table.present, joined=True))
            self._changed.notify_all()
        logger.info("follower %d has joined at fusion %d", rank, self._table.present.epoch)

    def bring(self, contribution: Contribution, outbox: Outbox[Answer | Ended]) -> None:
        """Take a follower's contribution. Raises InvalidInput for an invalid one."""
        with self._changed:
            if self._ended is not None or self._outboxes.get(contribution.rank) is not outbox:
                return  # its stream is about to end
            late = self._table.bring(contribution)
            if late is not None:
                logger.info(
                    "follower %d is late for fusion %d", contribution.rank, contribution.epoch
                )
                outbox.put(Answer(late))
            self._changed.notify_all()

    def leave(self, rank: int, outbox: Outbox[Answer | Ended]) -> None:
        """A follower's stream is over."""
        with self._changed:
            if self._outboxes.get(rank) is not outbox:
                return
            del self._outboxes[rank]
            self._table.leave(rank)
            self._changed.notify_all()
        logger.info("follower %d has left", rank)

    def closes(self, last: bool) -> bool:
        """See `FusionTransport`."""
        return last or self._options.in_a_hurry()

    def finish(self) -> None:
        """See `FusionTransport`."""
        self.end("the lead has finished its round")

    def end(self, reason: str) -> None:
        """Tell all followers once that the round is over, including those that join later."""
        with self._changed:
            if self._ended is not None:
                return
            self._ended = Ended(reason)
            for outbox in self._outboxes.values():
                outbox.put(self._ended)
                outbox.close()


Serving = Callable[[FusionLead], AbstractContextManager[FusionLead]]
"""Admits followers to a lead: `FollowerRegistry.serving`."""


@contextmanager
def lead_fusion(
    work: pod_service_pb2.TrainWork, options: LeadOptions, algorithm: Algorithm, serving: Serving
) -> Iterator[EpochFusion | None]:
    """Admit followers to the round of `algorithm`, as granted; yields None without followers.

    Raises InvalidInput for an unknown fusion, and for an algorithm without fusion.
    """
    if not work.follower_count:
        yield None
        return
    spec = work.fusion
    fusion = fusion_class(spec.fusion or Fusion.name)(
        FusionOptions(
            spec.outer_learning_rate if spec.HasField("outer_learning_rate") else 1.0,
            spec.outer_momentum if spec.HasField("outer_momentum") else 0.0,
        )
    )
    sharing = algorithm.share(LEAD)
    table = FusionTable(
        fusion, sharing.state().to("cpu"), quorum=spec.quorum, deadline_s=fusion_deadline_s(spec)
    )
    with serving(FusionLead(table, options)) as lead:
        yield EpochFusion(algorithm, sharing, lead, LEAD, spec.interval_updates)


def fusion_deadline_s(spec: pod_service_pb2.FusionSpec) -> float:
    """How long the lead waits for the others."""
    return seconds_from_duration(spec.deadline) if spec.HasField("deadline") else Fusion.deadline
