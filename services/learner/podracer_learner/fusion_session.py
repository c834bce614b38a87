"""The lead's end of one follower's Fuse stream."""

from __future__ import annotations

from collections.abc import Iterator

from podracer.common.v1 import tensor_pb2
from podracer.learner.v1 import learner_service_pb2
from podracer_core.carriers.inline import TensorEncoder
from podracer_core.errors import InvalidInput
from podracer_core.fusion.state import Contribution
from podracer_core.rpc.sessions import Session
from podracer_core.service.build import require_same_build
from podracer_learner.fusion_lead import Answer, Ended, FusionLead
from podracer_learner.fusion_wire import StateDecoder, fused_responses

__all__ = ["FollowerSession"]

_MOST_STEPS = 1 << 53  # those of all learners together are still less than int64 holds


class FollowerSession(Session):
    """Read in one thread, answered in another; neither is the one that trains."""

    def __init__(self, lead: FusionLead) -> None:
        super().__init__()
        self._lead, self._rank = lead, 0
        self._decoder, self._encoder = StateDecoder(), TensorEncoder()
        self._incoming: learner_service_pb2.FusionContribution | None = None  # waits for its chunks

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
            self._bring(self._decoder.begin(request.contribution.parameters, request.contribution.normalizer_delta))
        elif kind == "chunk":
            self._bring(self._decoder.add(request.chunk))
        else:
            raise InvalidInput(f"a follower sent {kind or 'an empty message'}", reason="BAD_FUSION")

    def responses(self, answer: Answer | Ended) -> Iterator[learner_service_pb2.FuseResponse]:
        """What this follower is sent."""
        if isinstance(answer, Ended):
            yield learner_service_pb2.FuseResponse(end=learner_service_pb2.FusionEnd(reason=answer.reason))
        elif answer.fused is None:
            yield learner_service_pb2.FuseResponse(result=learner_service_pb2.FusionResult())
        else:
            inline = tensor_pb2.CarrierChoice(kind=tensor_pb2.CARRIER_KIND_INLINE)
            yield from fused_responses(answer.fused, self._encoder, inline if answer.joined else None)

    def drain(self) -> None:
        self.outbox.put(Ended("the lead is stopping"))
        self.outbox.close()

    def close(self) -> None:
        if self._rank:
            self._lead.leave(self._rank, self.outbox)

    def _bring(self, complete: bool) -> None:
        if not complete:
            return
        header, self._incoming = self._incoming, None
        if header is None:
            raise InvalidInput("a contribution came without a header", reason="BAD_FUSION")
        if header.sample_count < 0 or not all(0 <= steps <= _MOST_STEPS for steps in header.env_steps):
            raise InvalidInput(
                f"a contribution of {header.sample_count} samples came, of {list(header.env_steps)[:100]} environment "
                f"steps; expected 0 or more, and 0 to {_MOST_STEPS}",
                reason="BAD_FUSION",
            )
        growth = self._decoder.take(list(header.env_steps))
        self._lead.bring(Contribution(self._rank, header.epoch, header.sample_count, growth), self.outbox)
