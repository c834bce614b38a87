"""The plan of benchmarks/peers_ppo.py: which systems there are, what a run of one is, and how it is
kept."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from peers.ppo_recipes import Order, RecipeName, Task, recipe_of
from report import read_lines

Part = Literal["alone", "speed", "target"]
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class System:
    """What is measured. `solves`: it is trained to the targets, too; `same` is our best recipe
    there."""

    title: str
    library: str = "podracer"
    recipe: RecipeName = "same"
    env_runners: int = 0
    solves: bool = True
    quick: bool = False


SYSTEMS = {
    "ours": System("Podracer", quick=True),
    "sb3_same": System("Stable-Baselines3", "sb3", quick=True),
    "sbx_same": System("SBX", "sbx"),
    "rllib_1_same": System("RLlib, 1 env runner", "rllib", env_runners=1, solves=False),
    "rllib_2_same": System("RLlib, 2 env runners", "rllib", env_runners=2),
    "sb3_published": System("Stable-Baselines3, zoo", "sb3", "published", quick=True),
    "sbx_published": System("SBX, zoo", "sbx", "published"),
    "rllib_1_published": System(
        "RLlib, its MuJoCo example, 1 env runner", "rllib", "published", 1, solves=False
    ),
    "rllib_2_published": System(
        "RLlib, its MuJoCo example, 2 env runners", "rllib", "published", 2
    ),
}

ALONE = {
    "ours": "Podracer",
    "loop": "Gymnasium's, one after the other",
    "sync": "Gymnasium's SyncVectorEnv, which RLlib has",
    "async": "Gymnasium's AsyncVectorEnv",
    "baselines": "Stable-Baselines3's DummyVecEnv, normalized",
}
"""The environments of each system without anybody who learns."""


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
    figures   alone: steps/s of each system's environments; speed: `steps_per_second`; target:
              `seconds` and `training_seconds` (None where it was not reached), `env_steps` and
              `steps_per_second` of what was done, looks included; speed and target: `memory_mb` and
              `processes` at the peak
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
    """One process, or one for each target, of the plan; `system` is "environments" where these are
    measured alone."""

    part: Part
    task: Task
    system: str
    seed: int

    def blank_runs(self, setting: Setting) -> list[Run]:
        """The runs that it gives, without their figures."""
        is_target = self.part == "target"
        length_s = (setting.limit_s or self.task.limit_s) if is_target else setting.speed_s
        targets = self.task.targets if is_target else (0.0,)
        place = (self.part, self.task.environment, self.system, self.seed, length_s)
        return [Run(*place, target, self._settings(), {}) for target in targets]

    @property
    def recipe(self) -> RecipeName:
        """The peers go for the targets with our best settings, where these are not their own."""
        name = SYSTEMS[self.system].recipe
        return "best" if name == "same" and self.part == "target" else name

    def order(self, setting: Setting, speed_s: float) -> Order:
        """For the process of its system."""
        system = SYSTEMS[self.system]
        place = (system.library, self.task.environment, self.recipe, self.seed)
        return Order(*place, setting.threads, system.env_runners, speed_s)

    def _settings(self) -> str:
        if self.part == "alone":
            return ""
        system = SYSTEMS[self.system]
        if system.library == "rllib" and self.recipe == "published":
            return "its example"
        return recipe_of(self.recipe, self.task.environment).digest


def packages() -> list[str]:
    """Those of the peers that our own environment has."""
    names = {"stable_baselines3": ["stable-baselines3"], "sbx": ["sbx-rl", "jax"]}
    return [
        package
        for module, found in names.items()
        if importlib.util.find_spec(module)
        for package in found
    ]


def read_runs(results: Path) -> dict[tuple[object, ...], Run]:
    """The runs that have ended."""
    return {run.key: run for run in (Run(**fields) for fields in read_lines(results))}


def append_run(results: Path, run: Run) -> None:
    """A line more."""
    results.parent.mkdir(parents=True, exist_ok=True)
    is_torn = results.exists() and not results.read_text().endswith("\n")
    with results.open("a") as file:
        file.write("\n" * is_torn + json.dumps(asdict(run)) + "\n")
