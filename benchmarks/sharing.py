"""What sharing transitions gains: own replay, with more environments, mixed and shared; children
with and without.

Cohorts of four SAC agents of one shape with seeds of their own, as a tournament begins: the
search's defaults, then its first points. The variants of a seed begin with the same agents and
train for the same CPU seconds of this process. They take turns of a quarter of a second, as a
second is worth less where the machine is busy. An agent with four times the environments takes as
many gradient steps for a rollout.

Half way each agent with own replay also becomes the parent of two children: copies of it with the
same perturbed hyperparameters, one with its transitions and one without. They train for the other
half.

Looks are 8 greedy episodes of every agent at even seconds, and 64 at the end: the first half of
these chooses the best agent, the other half says what it is worth. Differences are paired by seed,
with 95 % bootstrap intervals. What has ended is a line of `--results` and is not trained again."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from report import Target, finish, number_text, print_table, read_lines, versions

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.algorithms.algorithm import algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.evolution.portfolio import configuration
from podracer_core.random_numbers import COMPARISON, evaluation_seeds
from podracer_core.sections.search import AlgorithmShare, Search
from podracer_core.training.member_states import MemberGroups, inherit
from podracer_core.training.phases import processor_seconds
from podracer_leaderboard.competition import read_competition
from podracer_platform.messages.sections import search_to_message

RESULTS = Path(__file__).resolve().parent.parent / "runs" / "benchmarks" / "sharing.jsonl"
TASKS = {"Pendulum-v1": 12.0, "InvertedDoublePendulum-v5": 12.0}  # CPU seconds of a cohort
MEMBERS = 4
OWN, MORE, MIXED, SHARED = "own", "own, 4 times the environments", "mixed", "shared"
# `replay`, and environments of an agent.
VARIANTS = {
    OWN: ("member", 1),
    MORE: ("member", MEMBERS),
    MIXED: ("mixed", 1),
    SHARED: ("shared", 1),
}
EMPTY, INHERITED = "child with an empty replay", "child with its parent's"
PAIRS = (
    (MORE, OWN),
    (MIXED, OWN),
    (SHARED, OWN),
    (MIXED, MORE),
    (SHARED, MORE),
    (INHERITED, EMPTY),
)
LOOKS, TURNS, EPISODES, LAST_EPISODES, RESAMPLES = 8, 6, 8, 64, 10_000
Key = tuple[str, str, int, float]  # task, variant, seed, CPU seconds


@dataclass(frozen=True)
class Run:
    """A cohort's looks: every agent's mean return at even seconds, of children in the second half
    only."""

    task: str
    variant: str
    seed: int
    seconds: float
    looks: list[list[float]]
    best: float  # of the agent that looked best at the end, in other episodes
    env_steps: int
    gradient_steps: int

    @property
    def key(self) -> Key:
        return self.task, self.variant, self.seed, self.seconds

    @property
    def figures(self) -> dict[str, float]:
        looks = [statistics.fmean(look) for look in self.looks]
        return {
            "mean": looks[-1],
            "best": self.best,
            "all looks": statistics.fmean(looks),
            "first look": looks[0],
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="Pendulum, one seed, 2 s a cohort: under a minute"
    )
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="trained cohorts, a JSON line each"
    )
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.results = 1, Path(tempfile.mkdtemp(prefix="sharing-"), "quick.jsonl")
    tasks = {"Pendulum-v1": 2.0} if options.quick else TASKS
    torch.set_num_threads(1)
    print(
        versions("torch", "gymnasium", "mujoco-core"), f"· cohorts in {options.results}", flush=True
    )
    results = options.results.absolute()
    results.parent.mkdir(parents=True, exist_ok=True)
    known = {run.key: run for run in (Run(**fields) for fields in read_lines(results))}
    # MuJoCo writes its log where it stands
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for seed, (task, seconds) in itertools.product(range(options.seeds), tasks.items()):
            if (task, INHERITED, seed, seconds) not in known:
                found = _train(task, seed, seconds)
                known |= {run.key: run for run in found}
                with results.open("a") as file:
                    file.writelines(json.dumps(asdict(run)) + "\n" for run in found)
    _report(
        [
            run
            for run in known.values()
            if tasks.get(run.task) == run.seconds and run.seed < options.seeds
        ]
    )


def _train(task: str, seed: int, seconds: float) -> list[Run]:
    """All variants, and from half of the seconds on the children of those with own replay."""
    search = Search(algorithms=(AlgorithmShare("sac"),))
    space = read_competition(
        leaderboard_pb2.LeaderboardSpec(search=search_to_message(search))
    ).space
    agents = [configuration(space, "sac", number, seed) for number in range(MEMBERS)]
    draw = random.Random(seed)
    changed = [space.mutate("sac", agent, draw) for agent in agents]
    cohorts = [Training((task, variant, seed, seconds), agents) for variant in VARIANTS]
    for turn in range(LOOKS * TURNS):
        if turn == LOOKS * TURNS // 2:
            parents = cohorts[0].checkpoints()
            cohorts += [
                Training((task, name, seed, seconds), changed, parents)
                for name in (EMPTY, INHERITED)
            ]
        for cohort in cohorts:
            cohort.train((turn + 1) / (LOOKS * TURNS))
            if (turn + 1) % TURNS == 0:
                cohort.look((turn + 1) // TURNS)
    return [cohort.end() for cohort in cohorts]


class Training:
    """Of one cohort: `key` is that of its run."""

    def __init__(
        self, key: Key, agents: Sequence[dict[str, Any]], parents: Sequence[MemberGroups] = ()
    ) -> None:
        self._key, (task, variant, seed, self._seconds) = key, key
        replay, envs = VARIANTS.get(variant, VARIANTS[OWN])
        info = find_algorithm("sac")
        shared = {name: agents[0][name] for name in info.defaults("cohort", "network")} | {
            "replay": replay
        }
        shared["updates_per_step"] /= envs
        # children's are their own
        seeds = [1000 * seed + number + 500 * bool(parents) for number in range(MEMBERS)]
        members = tuple(
            MemberConfig(
                f"agent-{own}", own, {name: float(agent[name]) for name in info.defaults("member")}
            )
            for own, agent in zip(seeds, agents, strict=True)
        )
        make = functools.partial(make_vec_environment, EnvironmentSpec(id=task), processes=1)
        self._environment, self._evaluator = make(MEMBERS * envs), GreedyEvaluator(make)
        spaces = self._environment.observation_space, self._environment.action_space
        self._algorithm = algorithm_class("sac")(CohortConfig("sac", members, shared), *spaces)
        for member, parent in enumerate(parents):
            inherit(self._algorithm, member, "copy", [(parent, 1.0)], keep_optimizer=True)
        if variant == INHERITED:
            self._algorithm.load_replay_states([parent["replay"] for parent in parents])
        self._collector = Collector(self._environment, self._algorithm.actor, torch.tensor(seeds))
        self._steps, self._looks = 0, list[list[float]]()
        self._spent = self._seconds / 2 if parents else 0.0
        self._best = 0.0

    def train(self, part: float) -> None:
        """Up to this part of the seconds."""
        while self._spent < part * self._seconds:
            begin = processor_seconds()
            rollout = self._collector.collect(
                self._algorithm.horizon, policy_version=self._algorithm.version
            )
            self._algorithm.update(rollout)
            self._spent += processor_seconds() - begin
            self._steps += rollout.env_steps

    def look(self, number: int) -> None:
        episodes = LAST_EPISODES if number == LOOKS else EPISODES
        seeds = evaluation_seeds(number, COMPARISON, episodes)  # the same ones for every cohort
        returns = [
            result.returns for result in self._evaluator.evaluate(self._algorithm.actor, seeds)
        ]
        self._looks.append([statistics.fmean(own) for own in returns])
        best = max(returns, key=lambda own: statistics.fmean(own[: episodes // 2]))
        self._best = statistics.fmean(best[episodes // 2 :])

    def checkpoints(self) -> list[MemberGroups]:
        own = self._algorithm
        return [
            {**own.member_state(member), "replay": own.replay_state(member)}
            for member in range(MEMBERS)
        ]

    def end(self) -> Run:
        self._environment.close()
        self._evaluator.close()
        run = Run(*self._key, self._looks, self._best, self._steps, self._algorithm.gradient_steps)
        print(
            *self._key,
            {name: number_text(value) for name, value in run.figures.items()},
            flush=True,
        )
        return run


def _report(runs: Sequence[Run]) -> None:
    rows, differences, targets = list[list[object]](), list[list[object]](), dict[str, Target]()
    names = ["mean", "best", "all looks", "first look"]
    for task in dict.fromkeys(run.task for run in runs):
        variants = (*VARIANTS, EMPTY, INHERITED)
        found = {
            variant: [run for run in runs if (run.task, run.variant) == (task, variant)]
            for variant in variants
        }
        for variant, own in found.items():
            if own:
                means = [statistics.fmean(run.figures[name] for run in own) for name in names]
                steps = sum(run.env_steps for run in own), sum(run.gradient_steps for run in own)
                rows.append(
                    [task, variant, *means, *(count // len(own) for count in steps), len(own)]
                )
        for ours, theirs in PAIRS:
            other = {run.seed: run.figures for run in found[theirs]}
            pairs = [(run.figures, other[run.seed]) for run in found[ours] if run.seed in other]
            if pairs:
                gains = [interval([a[name] - b[name] for a, b in pairs]) for name in names]
                cells = ("{} ({} to {})".format(*map(number_text, gain)) for gain in gains)
                differences.append([task, f"{ours} − {theirs}", *cells, len(pairs)])
                targets[f"{task}: {ours} over {theirs}, lower end of the mean's"] = Target(
                    gains[0][1], 0.0
                )
    columns = ["variant", *names, "env steps", "gradient steps", "seeds"]
    print_table(
        f"Greedy return of cohorts of {MEMBERS}, means of the seeds", ["task", *columns], rows
    )
    columns = ["task", "difference", *names, "seeds"]
    print_table("Paired by seed: mean difference (95 % interval)", columns, differences)
    finish("sharing", {" ".join(map(str, run.key[:3])): run.figures for run in runs}, targets)


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Their mean, and its 95 % bootstrap interval."""
    draw, count = random.Random(0).choices, len(differences)
    means = sorted(statistics.fmean(draw(differences, k=count)) for _ in range(RESAMPLES))
    return (
        statistics.fmean(differences),
        means[int(0.025 * RESAMPLES)],
        means[int(0.975 * RESAMPLES)],
    )


if __name__ == "__main__":
    main()
