"""The lead of a fusion: collects the followers' contributions, fuses, and answers them. The Fuse
stream: states as messages, and the lead's end of one follower's stream; and the admission of
followers."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from podracer.common.v1 import tensor_pb2
from podracer.learner.v1 import learner_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import Algorithm
from podracer_core.errors import Fenced, InvalidInput, PreconditionFailed
from podracer_core.fusion import (
    LEAD,
    Contribution,
    Fused,
    FusionOptions,
    FusionState,
    FusionTable,
    Moments,
    fusion_class,
)
from podracer_core.sections import Fusion
from podracer_core.training import EpochFusion, FusionTransport
from podracer_platform.carriers import TensorDecoder, TensorEncoder, chunk_messages
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import Context, Outbox, Session, SessionSlots
from podracer_platform.service import require_same_build
from podracer_platform.telemetry import FUSION

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


Value = TypeVar("Value")

_PARAMETERS, _NORMALIZER = "parameters/", "normalizer/"
_ACTIVE, _TRANSITIONS = "active", "transitions"

_MOST_STEPS = 1 << 53  # those of all learners together are still less than int64 holds


def contribution_requests(
    contribution: Contribution, encoder: TensorEncoder
) -> Iterator[learner_service_pb2.FuseRequest]:
    """A header, and the chunks that belong to it."""
    messages, chunks = encoder.encode(_tensors(contribution.growth))
    header = learner_service_pb2.FusionContribution(
        epoch=contribution.epoch,
        sample_count=contribution.samples,
        parameters=_below(_PARAMETERS, messages),
        normalizer_delta=_below(_NORMALIZER, messages),
        env_steps=contribution.growth.transitions.tolist(),
    )
    yield learner_service_pb2.FuseRequest(contribution=header)
    yield from chunk_messages(learner_service_pb2.FuseRequest, chunks)


def fused_responses(
    fused: Fused, encoder: TensorEncoder, carrier: tensor_pb2.CarrierChoice | None = None
) -> Iterator[learner_service_pb2.FuseResponse]:
    """A header, and the chunks that belong to it; with a `carrier` it is the answer to `join`."""
    tensors = _tensors(fused.state) | {_NORMALIZER + _TRANSITIONS: fused.state.transitions}
    messages, chunks = encoder.encode(tensors)
    header = learner_service_pb2.FusionResult(
        epoch=fused.epoch,
        parameters=_below(_PARAMETERS, messages),
        normalizer=_below(_NORMALIZER, messages),
        ranks=fused.ranks,
        carrier=carrier,
    )
    if carrier is None:
        yield learner_service_pb2.FuseResponse(result=header)
    else:
        yield learner_service_pb2.FuseResponse(joined=header)
    yield from chunk_messages(learner_service_pb2.FuseResponse, chunks)


class StateDecoder:
    """The receiving end: `begin` with a header's tensors, `add` each chunk, `take` once either
    returns True.

    Raises InvalidInput for invalid messages.
    """

    def __init__(self) -> None:
        self._tensors = TensorDecoder()

    def begin(
        self,
        parameters: Mapping[str, tensor_pb2.Tensor],
        normalizer: Mapping[str, tensor_pb2.Tensor],
    ) -> bool:
        """Take the header's tensors. True if the header contained everything."""
        tensors = {_PARAMETERS + name: message for name, message in parameters.items()}
        return self._tensors.begin(
            tensors | {_NORMALIZER + name: message for name, message in normalizer.items()}
        )

    def add(self, chunk: tensor_pb2.TensorChunk) -> bool:
        """Take a chunk. True if it was the last one."""
        return self._tensors.add(chunk)

    def take(self, env_steps: list[int] | None = None) -> FusionState:
        """The decoded state. `env_steps` are the transitions if these are not among the tensors.
        Raises InvalidInput for tensors without `active` or valid transitions."""
        tensors = self._tensors.take()
        parameters, normalizer = _below(_PARAMETERS, tensors), _below(_NORMALIZER, tensors)
        transitions = (
            normalizer.pop(_TRANSITIONS, None) if env_steps is None else torch.tensor(env_steps)
        )
        active = parameters.pop(_ACTIVE, None)
        if transitions is None or active is None or not bool((transitions >= 0).all()):
            raise InvalidInput(
                "parameters came without `active`, or without environment steps",
                reason="BAD_FUSION",
            )
        return FusionState(parameters, _statistics(normalizer), transitions, active)


def _tensors(state: FusionState) -> dict[str, Tensor]:
    tensors = {_PARAMETERS + name: tensor for name, tensor in state.parameters.items()}
    tensors[_PARAMETERS + _ACTIVE] = state.active
    for name, moments in state.statistics.items():
        tensors |= {
            f"{_NORMALIZER}{name}.{key}": tensor for key, tensor in moments.tensors().items()
        }
    return tensors


def _statistics(tensors: Mapping[str, Tensor]) -> dict[str, Moments]:
    named: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition(".")
        named.setdefault(name, {})[key] = tensor
    for name, parts in named.items():
        if set(parts) != {"count", "mean", "squares"}:
            raise InvalidInput(
                f"statistics of {name!r} came as {sorted(parts)}", reason="BAD_FUSION"
            )
    return {name: Moments(**parts) for name, parts in named.items()}


def _below(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


class FollowerSession(Session):
    """Read in one thread, answered in another; neither is the one that trains."""

    def __init__(self, lead: FusionLead) -> None:
        super().__init__()
        self._lead, self._rank = lead, 0
        self._decoder, self._encoder = StateDecoder(), TensorEncoder()
        self._incoming = learner_service_pb2.FusionContribution()  # waits for its chunks

    def receive(self, request: learner_service_pb2.FuseRequest) -> None:
        kind = request.WhichOneof("message")
        if kind == "join" and not self._rank:
            require_same_build(request.join.build)
            self._lead.join(request.join.rank, request.join.lead_fence, self.outbox)
            self._rank = request.join.rank
        elif kind == "join" or not self._rank:
            raise InvalidInput("a follower begins with `join`, and joins once", reason="BAD_FUSION")
        elif kind == "contribution":
            self._incoming = request.contribution
            self._bring(
                self._decoder.begin(
                    request.contribution.parameters, request.contribution.normalizer_delta
                )
            )
        elif kind == "chunk":
            self._bring(self._decoder.add(request.chunk))
        else:
            raise InvalidInput(f"a follower sent {kind or 'an empty message'}", reason="BAD_FUSION")

    def responses(self, answer: Answer | Ended) -> Iterator[learner_service_pb2.FuseResponse]:
        """The messages for this follower."""
        if isinstance(answer, Ended):
            yield learner_service_pb2.FuseResponse(
                end=learner_service_pb2.FusionEnd(reason=answer.reason)
            )
        elif answer.fused is None:
            yield learner_service_pb2.FuseResponse(result=learner_service_pb2.FusionResult())
        else:
            inline = tensor_pb2.CarrierChoice(kind=tensor_pb2.CARRIER_KIND_INLINE)
            yield from fused_responses(
                answer.fused, self._encoder, inline if answer.joined else None
            )

    def drain(self) -> None:
        self.outbox.put(Ended("the lead is stopping"))
        self.outbox.close()

    def close(self) -> None:
        if self._rank:
            self._lead.leave(self._rank, self.outbox)

    def _bring(self, complete: bool) -> None:
        if not complete:
            return
        header = self._incoming
        if header.sample_count < 0 or not all(
            0 <= steps <= _MOST_STEPS for steps in header.env_steps
        ):
            raise InvalidInput(
                f"a contribution of {header.sample_count} samples came, of "
                f"{list(header.env_steps)[:100]} environment steps; expected 0 or more, and 0 to "
                f"{_MOST_STEPS}",
                reason="BAD_FUSION",
            )
        growth = self._decoder.take(list(header.env_steps))
        self._lead.bring(
            Contribution(self._rank, header.epoch, header.sample_count, growth), self.outbox
        )


NOT_A_LEAD = "NOT_A_LEAD"
"""Reason of the refusal while this learner leads no fusion."""

MAX_STREAMS = 96
"""Streams of followers, including lost ones that this side has not noticed yet."""


class FollowerRegistry:
    """Serves Fuse for the current round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lead: FusionLead | None = None
        self._slots = SessionSlots(MAX_STREAMS)

    @contextmanager
    def serving(self, lead: FusionLead) -> Iterator[FusionLead]:
        """Admit followers to this lead; at the end tell them that the round is over."""
        with self._lock:
            self._lead = lead
        try:
            yield lead
        finally:
            with self._lock:
                self._lead = None
            lead.end("the lead's round is over")

    async def serve(
        self, requests: AsyncIterator[learner_service_pb2.FuseRequest], context: Context
    ) -> None:
        """A follower's stream. Raises PreconditionFailed (NOT_A_LEAD) while this learner leads no
        fusion."""
        with self._lock:
            lead = self._lead
        if lead is None:
            raise PreconditionFailed("this learner leads no fusion now", reason=NOT_A_LEAD)
        # late: it imports torch, as a lead has done

        await self._slots.serve(partial(FollowerSession, lead), requests, context)

    def drain(self) -> None:
        """The process is about to stop: tell all followers."""
        self._slots.drain()
