"""The Fuse stream: states as messages, and the lead's end of one follower's stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from podracer.common.v1 import tensor_pb2
from podracer.learner.v1 import learner_service_pb2
from podracer_core.errors import InvalidInput
from podracer_core.fusion.state import Contribution, Fused, FusionState, Moments
from podracer_learner.fusion.lead import Answer, Ended, FusionLead
from podracer_platform.carriers.inline import TensorDecoder, TensorEncoder, chunk_messages
from podracer_platform.rpc.sessions import Session
from podracer_platform.service.build import require_same_build

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
