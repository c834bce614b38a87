"""The agents that are trained together, and their hyperparameters. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podracer_core.catalogue import AlgorithmInfo
from podracer_core.errors import FieldViolation, InvalidInput


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """One agent. `hyperparameters` are those of scope "member"; missing ones have their default."""

    name: str
    seed: int
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CohortConfig:
    """M agents of one algorithm and one network shape. `shared` are hyperparameters of any scope,
    for all members.

    A member's own value overrides the shared one, and that the catalogue's default.
    """

    algorithm: str
    members: tuple[MemberConfig, ...]
    shared: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidInput(
                "a cohort needs at least one member",
                violations=[FieldViolation("members", "is empty")],
            )

    def shared_values(self, info: AlgorithmInfo) -> dict[str, Any]:
        """Hyperparameters of scope "cohort" and "network". Raises InvalidInput for an unknown name
        or a bad value."""
        values = info.defaults("cohort", "network")
        for name, value in self.shared.items():
            knob = info.hyperparameter(name)
            knob.check(value)
            if name in values:
                values[name] = tuple(value) if knob.kind == "sizes" else value
        return values

    def member_values(self, info: AlgorithmInfo) -> dict[str, list[float]]:
        """Hyperparameters of scope "member", one value a member. Raises InvalidInput as
        `shared_values` does."""
        defaults = info.defaults("member")
        defaults |= {name: value for name, value in self.shared.items() if name in defaults}
        values: dict[str, list[float]] = {name: [] for name in defaults}
        for member in self.members:
            check_member_hyperparameters(info, member.hyperparameters)
            for name, default in defaults.items():
                values[name].append(float(member.hyperparameters.get(name, default)))
        return values


def check_member_hyperparameters(info: AlgorithmInfo, values: Mapping[str, float]) -> None:
    """Raises InvalidInput unless every name is a hyperparameter that members may differ in, and in
    its range."""
    for name, value in values.items():
        knob = info.hyperparameter(name)
        if knob.scope != "member":
            raise InvalidInput(
                f"{name} is one for the whole cohort; set it in `shared`", field=name
            )
        knob.check(value)
