"""How a job names its environment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["EnvironmentSpec"]

_ENTRY_POINT = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*$")


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The environment that a job names: an `id`, or the `entry_point` of the user's own class or function.

    id                   a built-in, a name in the entry point group `podracer.environments`, or a Gymnasium id
    entry_point          "package.module:Name", called with `kwargs`; it returns a `gymnasium.Env`
    code_path            a folder that is importable while the entry point is loaded, in the environment's process only
    kwargs               JSON values
    max_episode_steps    truncates episodes; None leaves the environment's own limit
    """

    id: str = ""
    entry_point: str = ""
    code_path: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None

    def __post_init__(self) -> None:
        violations = list(self._violations())
        if violations:
            raise InvalidInput("; ".join(str(violation) for violation in violations), violations=violations)

    def _violations(self) -> list[FieldViolation]:
        found = []
        if bool(self.id) == bool(self.entry_point):
            found.append(FieldViolation("environment", "give either an id or an entry_point"))
        if self.entry_point and not _ENTRY_POINT.match(self.entry_point):
            message = f"{self.entry_point!r} is not of the form package.module:Name"
            found.append(FieldViolation("environment.entry_point", message))
        if self.code_path and not self.entry_point:
            found.append(FieldViolation("environment.code", "code goes with an entry_point"))
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            message = f"must be at least 1, not {self.max_episode_steps}"
            found.append(FieldViolation("environment.max_episode_steps", message))
        try:
            json.dumps(dict(self.kwargs))
        except (TypeError, ValueError) as error:
            found.append(FieldViolation("environment.kwargs", f"must be JSON values: {error}"))
        return found

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return self.id or self.entry_point

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values: `EnvironmentSpec(**spec.to_json())` is equal to it."""
        return {
            "id": self.id,
            "entry_point": self.entry_point,
            "code_path": self.code_path,
            "kwargs": dict(self.kwargs),
            "max_episode_steps": self.max_episode_steps,
        }
