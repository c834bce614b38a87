"""The plan of benchmarks/peers_ppo.py: which systems there are, and what a run of one is."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lab.runs import digest
from peers.ppo_recipes import Order, RecipeName, Task, recipe_of

Part = Literal["speed", "target"]
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """What is measured. `solves`: it is trained to the targets, too."""

    title: str
    library: str = "podracer"
    recipe: RecipeName = "same"
    env_runners: int = 0
    solves: bool = True
    members: int = 1

    @property
    def is_ours(self) -> bool:
        return self.library == "podracer"


SYSTEMS = {
    "ours": System("Podracer"),
    "ours_8": System("Podracer, cohort of 8", solves=False, members=8),
    "sb3_same": System("Stable-Baselines3", "sb3"),
    "sbx_same": System("SBX", "sbx"),
    "rllib_1_same": System("RLlib, 1 env runner", "rllib", env_runners=1, solves=False),
    "rllib_2_same": System("RLlib, 2 env runners", "rllib", env_runners=2),
    "sb3_published": System("Stable-Baselines3, zoo", "sb3", "published"),
    "sbx_published": System("SBX, zoo", "sbx", "published"),
    "rllib_1_published": System(
        "RLlib, its MuJoCo example, 1 env runner", "rllib", "published", 1, solves=False
    ),
    "rllib_2_published": System(
        "RLlib, its MuJoCo example, 2 env runners", "rllib", "published", 2
    ),
}


@dataclass(frozen=True)
class Setting:
    """How everything is measured.

    speed_s   of a measurement of steps/s
    limit_s   of a run to the targets; None: the task's own
    threads   of torch, MuJoCo and JAX
    peers     RLlib's virtual environment
    """

    speed_s: float
    limit_s: float | None
    threads: int
    peers: Path


@dataclass(frozen=True)
class Run:
    """One run that has ended.

    length_s  of the measurement, or the limit of a run to a target
    target    the return to reach; 0 where there is none
    settings  a digest of the recipe: with another one it is another run
    figures   `steps_per_second` of what was done; target: `seconds` and `training_seconds` (None
              where it was not reached) and `env_steps`, looks included; `memory_mb` and `processes`
              at the peak
    """

    part: Part
    environment: str
    system: str
    seed: int
    length_s: float
    target: float
    settings: str
    figures: Figures

    @property
    def key(self) -> tuple[object, ...]:
        """No other run has it."""
        what = (self.part, self.environment, self.system, self.seed)
        return *what, self.length_s, self.target, self.settings

    @property
    def seconds(self) -> float:
        """To the target; the limit where it was not reached, which is less than the run would have
        needed."""
        return float(self.figures["seconds"] or self.length_s)


@dataclass(frozen=True)
class Entry:
    """One process, or one for each target, of the plan."""

    part: Part
    task: Task
    system: str
    seed: int

    def runs(self, setting: Setting, figures: Sequence[Figures] = ()) -> list[Run]:
        """The runs that it gives; without figures they only have keys."""
        is_target = self.part == "target"
        length_s = (setting.limit_s or self.task.limit_s) if is_target else setting.speed_s
        targets = self.task.targets if is_target else (0.0,)
        place = (self.part, self.task.environment, self.system, self.seed, length_s)
        blank = [Run(*place, target, self._settings(), {}) for target in targets]
        found = figures or [{}] * len(blank)
        return [replace(run, figures=own) for run, own in zip(blank, found, strict=True)]

    def order(self, setting: Setting, speed_s: float) -> Order:
        """For the process of its system."""
        system = SYSTEMS[self.system]
        place = (system.library, self.task.environment, system.recipe, self.seed)
        return Order(*place, setting.threads, system.env_runners, speed_s, system.members)

    def _settings(self) -> str:
        system = SYSTEMS[self.system]
        if system.library == "rllib" and system.recipe == "published":
            return "its example"
        return digest(asdict(recipe_of(system.recipe, self.task.environment)))


def packages() -> list[str]:
    """Those of the peers that our own environment has."""
    names = {"stable_baselines3": ["stable-baselines3"], "sbx": ["sbx-rl", "jax"]}
    there = [found for module, found in names.items() if importlib.util.find_spec(module)]
    return [package for found in there for package in found]


def systems_of(task: Task, libraries: Sequence[str]) -> list[str]:
    """The systems that are measured on a task, of the libraries that are installed."""
    names = task.systems or [name for name in SYSTEMS if name != "ours_8"]
    return [name for name in names if SYSTEMS[name].library in libraries]
