"""Which environments there are: the built-in ones with their spaces, and how to name any other."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from podracer_core.catalogue.spaces import BoxSpace, DiscreteSpace, Space
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["BUILT_IN", "ENTRY_POINT_GROUP", "EnvironmentInfo", "EnvironmentSpec", "find_environment"]

ENTRY_POINT_GROUP = "podracer.environments"

_GYMNASIUM_ID = re.compile(r"^(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+$")
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


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What is known of an environment without starting it.

    The spaces are None where `needs_inspection`. `factory` is the "module:Name" of the class that implements a
    batched environment in this process, empty where processes with a Gymnasium environment do.
    """

    id: str
    description: str
    backend: Literal["torch", "installed", "gymnasium"]
    devices: tuple[str, ...] = ("cpu",)
    observation_space: Space | None = None
    action_space: Space | None = None
    max_episode_steps: int | None = None
    factory: str = ""

    @property
    def needs_inspection(self) -> bool:
        """True if the spaces are unknown until someone has started it."""
        return self.observation_space is None or self.action_space is None


_CART_POLE_HIGH = (4.8, math.inf, 24 * math.pi / 180, math.inf)

BUILT_IN: Mapping[str, EnvironmentInfo] = {
    info.id: info
    for info in (
        EnvironmentInfo(
            id="CartPole-v1",
            description="Balance a pole on a cart by pushing it left or right; 1 a step, 500 at most",
            backend="torch",
            devices=("cpu", "cuda"),
            observation_space=BoxSpace(tuple(-high for high in _CART_POLE_HIGH), _CART_POLE_HIGH, (4,)),
            action_space=DiscreteSpace(2),
            max_episode_steps=500,
            factory="podracer_core.environments.cartpole:CartPole",
        ),
        EnvironmentInfo(
            id="Pendulum-v1",
            description="Swing a pendulum up and hold it with a weak motor; about -150 an episode is good, 0 the best",
            backend="torch",
            devices=("cpu", "cuda"),
            observation_space=BoxSpace((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0), (3,)),
            action_space=BoxSpace(-2.0, 2.0, (1,)),
            max_episode_steps=200,
            factory="podracer_core.environments.pendulum:Pendulum",
        ),
    )
}


def find_environment(environment_id: str) -> EnvironmentInfo:
    """What is known of `environment_id`; InvalidInput with the nearest names if nobody knows it.

    Where Gymnasium is not installed (an orchestrator's image), an id of its form is taken on trust: inspection tells.
    """
    if environment_id in BUILT_IN:
        return BUILT_IN[environment_id]
    installed = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    if environment_id in installed.names:
        value = installed[environment_id].value
        return EnvironmentInfo(environment_id, f"installed: {value}", backend="installed", factory=value)
    known = _gymnasium_ids()
    # An id with a module prefix is registered only by importing the user's module, which is left to its own process.
    on_trust = known is None or ":" in environment_id
    if (known and environment_id in known) or (on_trust and _GYMNASIUM_ID.match(environment_id)):
        return EnvironmentInfo(environment_id, "Gymnasium's, in processes", backend="gymnasium")
    names = sorted({*BUILT_IN, *installed.names, *(known or ())})
    nearest = difflib.get_close_matches(environment_id, names, n=3, cutoff=0.5) or sorted(BUILT_IN)
    message = f"unknown environment {environment_id!r}; did you mean {' or '.join(nearest)}?"
    raise InvalidInput(
        message,
        violations=[FieldViolation("environment.id", message)],
        reason="UNKNOWN_ENVIRONMENT",
        environment=environment_id,
    )


def _gymnasium_ids() -> frozenset[str] | None:
    """The ids that Gymnasium knows, or None where it is not installed."""
    if importlib.util.find_spec("gymnasium") is None:
        return None
    import gymnasium  # late: it costs NumPy and a third of a second, and built-in ids do without

    return frozenset(gymnasium.registry)
