"""The description of an environment, without starting it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from podracer_core.catalogue.ranges import HyperparameterValue
from podracer_core.catalogue.spaces import Space


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """A keyword argument of an environment's constructor, for `environment.kwargs` of a job.

    default    a JSON value (a tuple stands for a list); no default if `required`
    example    a value for a job file, if `required`
    is_file    the path of a local file, which a job names under `data` and uploads, not in
               `environment.kwargs`
    """

    name: str
    meaning: str
    default: object = None
    required: bool = False
    example: object = None
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is usual for a task on a device.

    evidence         the document with the measurement, in docs/
    cohort_envs      environments of a cohort that learns from rollouts, whose members share them
    member_envs      at least so many of each member
    replaying_envs   of a member that learns from replay: it matters more how often it learns
                     between two steps
    hyperparameters  by algorithm, those that differ from its defaults or from its value in a search
    """

    evidence: str
    cohort_envs: int = 0
    member_envs: int = 16
    replaying_envs: int = 8
    hyperparameters: Mapping[str, Mapping[str, HyperparameterValue]] = field(default_factory=dict)

    def envs_per_member(self, members: int, *, on_policy: bool) -> int:
        """The environments of each of `members`."""
        return (
            max(self.member_envs, self.cohort_envs // members) if on_policy else self.replaying_envs
        )


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """The description of an environment, without starting it.

    The spaces are None if `needs_inspection`. `factory`: the "module:Name" of the class of a
    batched environment in this process, empty for a Gymnasium environment in processes.
    `arguments`: of that class, besides `num_envs`, `device` and `max_episode_steps`. `package`:
    name and version of its distribution, empty if that is Podracer's own. `scores`: the values of
    the argument `score` with which evaluations rank by another statistic than the return, and that
    statistic's name. `most_reward`: the most that a step gives with the default arguments; None:
    unknown. `recipes`: its own defaults by "cpu" and "cuda", in place of those of its kind."""

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
    most_reward: float | None = None
    recipes: Mapping[str, Recipe] = field(default_factory=dict)

    @property
    def needs_inspection(self) -> bool:
        """Whether the spaces are unknown until it has been started."""
        return self.observation_space is None or self.action_space is None

    @property
    def is_batched(self) -> bool:
        """Whether its class steps a batch of environments in the process that trains."""
        return self.backend in ("torch", "mujoco")

    @property
    def is_gymnasiums(self) -> bool:
        """Whether it is of Gymnasium itself, so that it needs no trial."""
        return self.backend == "gymnasium" and self.package.partition(" ")[0] == "gymnasium"

    def score_name(self, arguments: Mapping[str, object]) -> str:
        """The name of its evaluations' statistic with these arguments: `return` unless `scores` has
        another."""
        return self.scores.get(str(arguments.get("score")), "return")
