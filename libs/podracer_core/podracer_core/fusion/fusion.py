"""The interface of a fusion: what a package implements, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from torch import Tensor

from podracer_core.catalogue.built_in import package_of
from podracer_core.catalogue.fusions import ENTRY_POINT_GROUP, fusion_names
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
            violations.append(FieldViolation("learning_rate", f"expected more than 0, got {self.learning_rate}"))
        if not 0.0 <= self.momentum < 1.0:
            violations.append(FieldViolation("momentum", f"expected 0 or more and less than 1, got {self.momentum}"))
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)


@dataclass(frozen=True, slots=True)
class Stack:
    """What K learners bring, in the order of their ranks.

    ranks       of the learners
    samples     that each has trained on since the last fusion
    counted     bool [K, M]: whether a learner's member counts. It does not where it has diverged or is not finite;
                `parameters` then hold the previous ones there, never a NaN
    parameters  name -> float64 [K, M, …]
    """

    ranks: tuple[int, ...]
    samples: tuple[int, ...]
    counted: Tensor
    parameters: Parameters


class Fusion(ABC):
    """Combines the parameters of several learners of one cohort. One object serves one round, and may remember."""

    def __init__(self, options: FusionOptions) -> None:
        """Raises InvalidInput for options that it cannot work with."""
        self.options = options

    @abstractmethod
    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """The parameters to go on with, float64 [M, …] each.

        previous  those of the last fusion, from which all learners began; float64 [M, …] each

        A function of its arguments, and of the calls before. What it returns for a member that no learner counts is
        not used. It must not change its arguments.
        """


def fusion_class(name: str) -> type[Fusion]:
    """The class of the fusion called `name`, built in or of an installed package.

    Raises InvalidInput where there is none, where several packages offer one, where it cannot be imported, and where it
    is no `Fusion`.
    """
    found = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == name]
    if not found:
        raise _refused(f"no fusion {name!r} is installed; there are: {', '.join(fusion_names())}")
    packages = sorted({package_of(entry) for entry in found})
    if len(packages) > 1:
        raise _refused(f"fusion {name!r} is offered by {', '.join(packages)}; remove all but one of them")
    return _loaded(found[0])


def _loaded(entry: EntryPoint) -> type[Fusion]:
    described = f"fusion {entry.name!r} of package {package_of(entry)}: {entry.value}"
    try:
        loaded = entry.load()
    except Exception as error:  # what an installed package does when it is imported is not ours to foresee
        raise _refused(f"{described} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Fusion)):
        raise _refused(f"{described} is no {Fusion.__module__}.{Fusion.__name__}")
    return loaded


def _refused(problem: str) -> InvalidInput:
    violation = FieldViolation("pod.fusion.name", problem)
    return InvalidInput(problem, violations=[violation], reason="UNKNOWN_EXTENSION")
