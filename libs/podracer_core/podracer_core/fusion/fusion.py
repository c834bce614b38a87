"""The interface of a fusion for packages, and its arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from podracer_core.catalogue import FUSION_GROUP, load_class
from podracer_core.errors import FieldViolation, InvalidInput

Parameters = Mapping[str, Tensor]
"""name -> [M, …] of one learner, or [K, M, …] of K learners."""


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """Settings of a job for its fusion: `learning_rate` and `momentum` of an outer optimizer."""

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        violations = []
        if not 0.0 < self.learning_rate < float("inf"):
            violations.append(
                FieldViolation("learning_rate", f"expected more than 0, got {self.learning_rate}")
            )
        if not 0.0 <= self.momentum < 1.0:
            violations.append(
                FieldViolation(
                    "momentum", f"expected 0 or more and less than 1, got {self.momentum}"
                )
            )
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)


@dataclass(frozen=True, slots=True)
class Stack:
    """The contributions of K learners, in the order of their ranks.

    ranks       of the learners
    samples     of each learner since the last fusion
    counted     bool [K, M]: whether a learner's member counts. It does not if it has diverged or is
                not finite; there `parameters` hold the previous ones, never a NaN
    parameters  name -> float64 [K, M, …]
    """

    ranks: tuple[int, ...]
    samples: tuple[int, ...]
    counted: Tensor
    parameters: Parameters


class Fusion(ABC):
    """Combines the parameters of several learners of one cohort. One object serves one round and
    may keep state."""

    def __init__(self, options: FusionOptions) -> None:
        """Raises InvalidInput for unsupported options."""
        self.options = options

    @abstractmethod
    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """The new parameters, float64 [M, …] each.

        previous  those of the last fusion, from which all learners began; float64 [M, …] each

        The result depends only on the arguments and on former calls. Values for a member that
        counts for no learner are ignored. It must not change its arguments."""


def fusion_class(name: str) -> type[Fusion]:
    """The class of the fusion `name`. Raises as `load_class`."""
    return load_class(FUSION_GROUP, name, Fusion, "pod.fusion.name")  # type: ignore[type-abstract]
