"""Which details of PPO make it learn HalfCheetah-v5: ours, ours with single details of
Stable-Baselines3, and theirs.

Seeds are the members of one cohort; settings, evaluation and looks are those of
benchmarks/returns.py, whose agents are not trained again. Each agent that is trained is a line of
`--results`; what is in docs/benchmarks/ppo_details.jsonl is known, too. Nothing here is timed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lab.arguments import RECORDS, RESULTS, arguments, quick_results
from lab.report import finish, print_table, versions
from lab.statistics import estimate
from peers.returns_training import DEFAULT, TITLES, AgentRuns, ReturnsOrder, Run, train
from peers.returns_variants import VARIANTS

RECORD, TARGET = RECORDS / "ppo_details.jsonl", 2000.0


def main() -> None:
    options = _options()
    print(versions("torch", "mujoco-core", "gymnasium"), f"· {options.threads} threads")
    trained = AgentRuns(Run, options.results, RECORD)
    known = AgentRuns(Run, options.returns, RECORD.with_name("returns.jsonl"))
    found: dict[str, list[Run]] = {}
    about, seeds = (options.every, options.steps), range(options.seeds)
    for name in options.variants:
        runs, system = (known, "ours") if name == DEFAULT else (trained, name)
        there = {run.seed for run in runs.find(options.task, system, seeds, *about)}
        if missing := [seed for seed in seeds if seed not in there]:
            order = ReturnsOrder(
                options.task, missing, options.steps, options.every, options.threads, name
            )
            runs.add(train(order, "ours"))
        found[VARIANTS[name].title] = runs.find(options.task, system, seeds, *about)
    if theirs := known.find(options.task, "sb3", seeds, *about):
        found[TITLES["sb3"]] = theirs
    if not options.quick:
        trained.copy(RECORD)
    _report(found, options)


def _options() -> argparse.Namespace:
    parser = arguments(
        __doc__,
        "8,192 steps of two seeds and two variants",
        seeds=10,
        steps=400_000,
        threads=os.cpu_count(),
        results=RESULTS / "ppo_details.jsonl",
    )
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--task", default="HalfCheetah-v5")
    parser.add_argument("--every", type=int, default=25_000, help="steps between two looks")
    parser.add_argument(
        "--returns", type=Path, default=RESULTS / "returns.jsonl", help="of returns.py"
    )
    options = parser.parse_args()
    if options.quick:
        options.variants, options.seeds = [DEFAULT, "as_sb3"], 2
        options.steps, options.every = 8192, 4096
        options.results, options.returns = quick_results(), quick_results()
    options.results, options.returns = options.results.absolute(), options.returns.absolute()
    return options


def _report(found: dict[str, list[Run]], options: argparse.Namespace) -> None:
    rows, figures = [], {}
    for title, runs in found.items():
        score = estimate([run.score for run in runs])
        area = estimate([sum(value for _, value in run.looks) / len(run.looks) for run in runs])
        firsts = [run.first_at(TARGET) for run in runs]
        there = sum(first is not None for first in firsts)
        rows.append([title, len(runs), score, area, f"{there} of {len(runs)}"])
        figures[title] = {"scores": [run.score for run in runs], "steps_to_target": firsts}
    print_table(
        f"{options.task} after {options.steps:,} steps: interquartile means over seeds (bootstrap "
        "interval of 95 %)",
        ["variant", "seeds", "last three looks", "mean of all looks", f"reached {TARGET:,.0f}"],
        rows,
    )
    finish("ppo_details", figures, {})


if __name__ == "__main__":
    main()
