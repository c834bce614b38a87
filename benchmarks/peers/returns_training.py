"""Agents of benchmarks/returns.py and benchmarks/ppo_details.py, trained by processes of their own,
and what is kept of each."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.peers import run_script
from lab.runs import Runs, digest
from peers.ppo_recipes import SAME, hyperparameters

from podracer_core.catalogue import find_algorithm

SCRIPTS = {"ours": "peers/returns_podracer.py", "sb3": "peers/returns_baselines.py"}
TITLES = {"ours": "Podracer", "sb3": "Stable-Baselines3"}
EPISODES, LAST_LOOKS = 10, 3
DEFAULT = "default"
DAY_S = 86_400.0


@dataclass(frozen=True)
class ReturnsOrder:
    """Train one agent for each seed, on the recipe of `benchmarks/peers_ppo.py` with the same
    settings for all.

    steps     of each agent; the last rollout is finished
    every     steps between two looks
    threads   of torch and MuJoCo
    variant   of ours: see `returns_variants`
    """

    environment: str
    seeds: Sequence[int]
    steps: int
    every: int
    threads: int
    variant: str = DEFAULT


@dataclass(frozen=True)
class Run:
    """One agent's training.

    settings          a digest of all hyperparameters and of the spacing of looks: with others it is
                      another run
    steps             that were asked for; a run of more of them holds one of fewer, since no
                      setting changes with time
    looks             steps taken and the mean return of the greedy episodes, look by look
    training_seconds  wall seconds without looks; ours are those of its whole cohort
    """

    task: str
    system: str
    seed: int
    settings: str
    steps: int
    looks: Sequence[Sequence[float]]
    training_seconds: float

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Of the agent, however long it was trained."""
        return self.task, self.system, self.seed, self.settings

    @property
    def score(self) -> float:
        """The mean of the last three looks."""
        last = [value for _, value in self.looks[-LAST_LOOKS:]]
        return sum(last) / len(last)

    def first_at(self, target: float) -> float | None:
        """Steps at the first look of at least `target`."""
        return next((taken for taken, value in self.looks if value >= target), None)

    def cut(self, steps: int) -> Run:
        """The first `steps` of it: up to the first look at or after them."""
        before = sum(taken < steps for taken, _ in self.looks)
        return replace(self, steps=steps, looks=self.looks[: before + 1])


class AgentRuns(Runs[Run]):
    """Of one agent's runs the longest counts."""

    def keep(self, run: Run) -> None:
        known = self.get(run.key)
        if known is None or known.steps < run.steps:
            super().keep(run)

    def find(
        self, task: str, system: str, seeds: Sequence[int], every: int, steps: int
    ) -> list[Run]:
        """The first `steps` of those agents that have been trained for as many."""
        settings = settings_of("sb3" if system == "sb3" else "ours", every)
        known = [self.get((task, system, seed, settings)) for seed in seeds]
        return [run.cut(steps) for run in known if run is not None and run.steps >= steps]


def settings_of(system: str, every: int) -> str:
    """Ours counts the catalogue's defaults in: with another default it is another run."""
    own = find_algorithm("ppo").defaults() if system == "ours" else {}
    looks = {"num_envs": SAME.num_envs, "every": every, "episodes": EPISODES}
    return digest(own | hyperparameters(SAME) | looks)


def train(order: ReturnsOrder, system: str) -> list[Run]:
    """The runs of an order, trained in a process of its own. Raises SystemExit where it fails."""
    seeds = ", ".join(map(str, order.seeds))
    print(f"{order.environment}, {TITLES[system]}, {order.variant}, seeds {seeds}", flush=True)
    # MuJoCo writes its log where it stands
    with tempfile.TemporaryDirectory(prefix="returns-") as scratch, chdir(scratch):
        told = run_script(SCRIPTS[system], order, Path("log"), DAY_S, on_event=_print)
        told.need("over")
    looks = [event for _, event in told.events if event["event"] == "look"]
    name = system if order.variant == DEFAULT else order.variant
    about, trained_s = (
        (settings_of(system, order.every), order.steps),
        looks[-1]["training_seconds"],
    )
    return [
        Run(
            order.environment,
            name,
            seed,
            *about,
            [(look["env_steps"], look["returns"][index]) for look in looks],
            trained_s,
        )
        for index, seed in enumerate(order.seeds)
    ]


def _print(event: dict[str, Any]) -> None:
    if event["event"] == "look":
        mean = sum(event["returns"]) / len(event["returns"])
        taken, seconds = event["env_steps"], event["training_seconds"]
        print(f"  {taken:,} steps, return {mean:,.0f}, {seconds:,.0f} s of training", flush=True)
