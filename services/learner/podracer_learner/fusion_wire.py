"""What learners bring to a fusion, and what comes of it, as messages.

Beside the parameters `active` goes along, bool [M]: which members have not diverged. Statistics are `NAME.count`,
`NAME.mean` and `NAME.squares` of each normalizer; the lead's answer has `transitions` too, int64 [M].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from podracer.common.v1 import tensor_pb2
from podracer.learner.v1 import learner_service_pb2
from podracer_core.carriers.inline import TensorDecoder, TensorEncoder
from podracer_core.errors import InvalidInput
from podracer_core.fusion.state import Contribution, Fused, FusionState
from podracer_core.fusion.statistics import Moments

__all__ = ["StateDecoder", "contribution_requests", "fused_responses"]

Value = TypeVar("Value")

_PARAMETERS, _NORMALIZER = "parameters/", "normalizer/"
_ACTIVE, _TRANSITIONS = "active", "transitions"


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
    for chunk in chunks:
        request = learner_service_pb2.FuseRequest()
        request.chunk.CopyFrom(chunk)
        yield request


def fused_responses(
    fused: Fused, encoder: TensorEncoder, carrier: tensor_pb2.CarrierChoice | None = None
) -> Iterator[learner_service_pb2.FuseResponse]:
    """A header, and the chunks that belong to it; with a `carrier` it is the answer to who joins."""
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
    for chunk in chunks:
        response = learner_service_pb2.FuseResponse()
        response.chunk.CopyFrom(chunk)
        yield response


class StateDecoder:
    """The receiving end: `begin` with a header's tensors, `add` each chunk, `take` once either says that all is there.

    Raises InvalidInput for what cannot be right.
    """

    def __init__(self) -> None:
        self._tensors = TensorDecoder()

    def begin(self, parameters: Mapping[str, tensor_pb2.Tensor], normalizer: Mapping[str, tensor_pb2.Tensor]) -> bool:
        """True where the header brought everything."""
        tensors = {_PARAMETERS + name: message for name, message in parameters.items()}
        return self._tensors.begin(tensors | {_NORMALIZER + name: message for name, message in normalizer.items()})

    def add(self, chunk: tensor_pb2.TensorChunk) -> bool:
        """True where this was the last one."""
        return self._tensors.add(chunk)

    def take(self, env_steps: list[int] | None = None) -> FusionState:
        """What came; `env_steps` are the transitions where they are not among the tensors."""
        tensors = self._tensors.take()
        parameters, normalizer = _below(_PARAMETERS, tensors), _below(_NORMALIZER, tensors)
        transitions = normalizer.pop(_TRANSITIONS, None) if env_steps is None else torch.tensor(env_steps)
        active = parameters.pop(_ACTIVE, None)
        if transitions is None or active is None or not bool((transitions >= 0).all()):
            raise InvalidInput("parameters came without `active`, or without environment steps", reason="BAD_FUSION")
        return FusionState(parameters, _statistics(normalizer), transitions, active)


def _tensors(state: FusionState) -> dict[str, Tensor]:
    tensors = {_PARAMETERS + name: tensor for name, tensor in state.parameters.items()}
    tensors[_PARAMETERS + _ACTIVE] = state.active
    for name, moments in state.statistics.items():
        tensors |= {f"{_NORMALIZER}{name}.{key}": tensor for key, tensor in moments.tensors().items()}
    return tensors


def _statistics(tensors: Mapping[str, Tensor]) -> dict[str, Moments]:
    named: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition(".")
        named.setdefault(name, {})[key] = tensor
    for name, parts in named.items():
        if set(parts) != {"count", "mean", "squares"}:
            raise InvalidInput(f"statistics of {name!r} came as {sorted(parts)}", reason="BAD_FUSION")
    return {name: Moments(**parts) for name, parts in named.items()}


def _below(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
