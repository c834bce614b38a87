"""What is known of an environment without starting it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from podracer_core.catalogue.spaces import Space


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """A keyword argument of an environment's constructor: what a job may give in `environment.kwargs`.

    default    a JSON value (a tuple stands for a list); no default where `required`
    example    what a job file could say, where `required`
    is_file    the path of a file here, which a job names under `data` and takes with it, not in `environment.kwargs`
    """

    name: str
    meaning: str
    default: object = None
    required: bool = False
    example: object = None
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What is known of an environment without starting it.

    The spaces are None where `needs_inspection`. `factory` is the "module:Name" of the class that implements a
    batched environment in this process, empty where processes with a Gymnasium environment do. `arguments` are what
    that class takes besides `num_envs`, `device` and `max_episode_steps`. `package` is the name and the version of the
    distribution that it comes from, empty where it is built in. `scores` are the values of the argument `score` with
    which evaluations rank by something else than the return, and what that is called.
    """

    id: str
    description: str
    backend: Literal["torch", "mujoco", "installed", "gymnasium"]
    devices: tuple[str, ...] = ("cpu",)
    observation_space: Space | None = None
    action_space: Space | None = None
    max_episode_steps: int | None = None
    factory: str = ""
    arguments: tuple[ArgumentInfo, ...] = ()
    package: str = ""
    scores: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_inspection(self) -> bool:
        """True if the spaces are unknown until someone has started it."""
        return self.observation_space is None or self.action_space is None

    def score_name(self, arguments: Mapping[str, object]) -> str:
        """What the numbers of its evaluations are, with these arguments: `return` unless `scores` has another."""
        return self.scores.get(str(arguments.get("score")), "return")
