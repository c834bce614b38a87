"""What the learners of a cohort share, and what each brings to a fusion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.fusion.statistics import Moments


@dataclass(frozen=True, slots=True)
class FusionState:
    """A cohort of M members as its learners share it.

    parameters   name -> floating-point [M, …]: networks, their slow copies, the logarithm of a temperature
    statistics   name -> those of each normalizer; in a contribution their growth since the last fusion
    transitions  int64 [M], environment steps of each agent; in a contribution those since the last fusion
    active       bool [M], false for a member that has diverged
    """

    parameters: Mapping[str, Tensor]
    statistics: Mapping[str, Moments]
    transitions: Tensor
    active: Tensor

    def to(self, device: torch.device | str) -> FusionState:
        """The same, there."""
        return FusionState(
            {name: tensor.to(device) for name, tensor in self.parameters.items()},
            {name: moments.to(device) for name, moments in self.statistics.items()},
            self.transitions.to(device),
            self.active.to(device),
        )

    def require_like(self, other: FusionState) -> None:
        """Raises InvalidInput unless `other` has the same names, shapes and dtypes: it is of the same cohort."""
        own, others = self.kinds(), other.kinds()
        differing = sorted(name for name in {*own, *others} if own.get(name) != others.get(name))
        if differing:
            name = differing[0]
            raise InvalidInput(
                f"a learner brings {name} as {others.get(name, 'nothing')}, expected {own.get(name, 'nothing')}: it "
                f"does not train the same cohort ({len(differing)} of {len(own)} tensors differ)",
                reason="COHORT_MISMATCH",
            )

    def kinds(self) -> dict[str, str]:
        """dtype and shape of every tensor by name, in order: equal for learners of one cohort."""
        tensors = {f"parameter {name}": tensor for name, tensor in self.parameters.items()}
        for name, moments in self.statistics.items():
            tensors |= {f"statistics {name}.{key}": tensor for key, tensor in moments.tensors().items()}
        tensors |= {"transitions": self.transitions, "active": self.active}
        return {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one learner brings to a fusion.

    rank     of the learner; the lead's is 0
    epoch    number of the fusion, counted from 1
    samples  that it has trained on since the last fusion: its weight in a weighted mean
    growth   its parameters, and by how much statistics and transitions have grown since the last fusion
    """

    rank: int
    epoch: int
    samples: int
    growth: FusionState


@dataclass(frozen=True, slots=True)
class Fused:
    """What has come of a fusion.

    epoch  its number; 0 for the state that learners begin with
    state  to go on from
    ranks  whose contributions are in it
    """

    epoch: int
    state: FusionState
    ranks: tuple[int, ...]
