"""PPO's returns on five MuJoCo tasks beside Stable-Baselines3's, with the same settings, seeds and
evaluation.

Ours trains its seeds as the members of one cohort; theirs is a process for each seed, on the
library's environments and VecNormalize. The settings are those of (b) of benchmarks/peers_ppo.py. A
look is 10 greedy episodes, the same ones for every agent of a task, every 25,000 steps;
Stable-Baselines3's statistics stand still meanwhile.

Each agent that is trained is a line of `--results` and is not trained again; what is in
docs/benchmarks/returns.jsonl is known, too. Nothing here is timed, so other work on the machine
changes no figure."""

from __future__ import annotations

import argparse
import importlib.util
import os

from lab.arguments import RECORDS, RESULTS, arguments, quick_results
from lab.report import versions
from peers.ppo_recipes import ARGUMENTS
from peers.returns_report import plot, report
from peers.returns_training import EPISODES, TITLES, AgentRuns, ReturnsOrder, Run, train

RECORD = RECORDS / "returns.jsonl"


def main() -> None:
    options = _options()
    packages = ["stable-baselines3"] if importlib.util.find_spec("stable_baselines3") else []
    print(
        versions("torch", "mujoco-core", "gymnasium", *packages),
        f"· {options.threads} threads, looks of {EPISODES}",
    )
    if not packages:
        print("Stable-Baselines3 is not installed: only what was trained before is shown")
    seeds = {"ours": range(options.seeds), "sb3": range(options.sb3_seeds or options.seeds)}
    runs = AgentRuns(Run, options.results, RECORD)
    found = {}
    for task in ARGUMENTS:
        for system in TITLES:
            is_there = system == "ours" or packages
            if task in options.task and system in options.system and is_there:
                _train_missing(runs, options, task, system, seeds[system])
        found[task] = {
            system: runs.find(task, system, seeds[system], options.every, options.steps)
            for system in TITLES
        }
    if not options.quick:
        runs.copy(RECORD)
        plot(found, RECORD.with_suffix(".png"))
    report({task: found[task] for task in options.task}, options.steps)


def _options() -> argparse.Namespace:
    parser = arguments(
        __doc__,
        "HalfCheetah, 8,192 steps of two seeds: under a minute",
        seeds=5,
        steps=1_000_000,
        threads=os.cpu_count(),
        results=RESULTS / "returns.jsonl",
    )
    parser.add_argument("--task", nargs="+", choices=list(ARGUMENTS), default=list(ARGUMENTS))
    parser.add_argument("--system", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument(
        "--cohort", type=int, default=5, help="seeds of ours at once; an interrupted cohort is lost"
    )
    parser.add_argument("--sb3-seeds", type=int, help="of Stable-Baselines3; default: as of ours")
    parser.add_argument("--every", type=int, default=25_000, help="steps between two looks")
    options = parser.parse_args()
    if options.quick:
        options.task, options.seeds, options.sb3_seeds = ["HalfCheetah-v5"], 2, None
        options.steps, options.every, options.results = 8192, 4096, quick_results()
    options.results = options.results.absolute()
    return options


def _train_missing(
    runs: AgentRuns, options: argparse.Namespace, task: str, system: str, seeds: range
) -> None:
    """A process for each seed; ours are the members of a cohort."""
    known = runs.find(task, system, seeds, options.every, options.steps)
    missing = [seed for seed in seeds if seed not in {run.seed for run in known}]
    size = options.cohort if system == "ours" else 1
    for first in range(0, len(missing), size):
        part = missing[first : first + size]
        order = ReturnsOrder(task, part, options.steps, options.every, options.threads)
        runs.add(train(order, system))


if __name__ == "__main__":
    main()
