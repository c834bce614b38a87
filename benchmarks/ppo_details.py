"""Which details of PPO make it learn HalfCheetah-v5: ours, ours with single details of
Stable-Baselines3, and theirs.

Seeds are the members of one cohort; settings, evaluation and looks are those of
benchmarks/returns.py, whose agents are not trained again. Each agent that is trained is a line of
`--results`; what is in docs/benchmarks/ppo_details.jsonl is known, too. Nothing here is timed."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from peers.returns_order import DEFAULT, ReturnsOrder
from peers.returns_runs import Run, Runs
from peers.returns_statistics import estimate
from peers.returns_training import TITLES, settings_of, train
from peers.returns_variants import VARIANTS
from report import finish, print_table, versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "runs" / "benchmarks" / "ppo_details.jsonl"
RECORD = ROOT / "docs" / "benchmarks" / "ppo_details.jsonl"
TASK, TARGET, EVERY = "HalfCheetah-v5", 2000.0, 25_000


def main() -> None:
    options = _options()
    print(versions("torch", "mujoco-core", "gymnasium"), f"· {options.threads} threads")
    trained = Runs(options.results, RECORD)
    known = Runs(options.returns, RECORD.with_name("returns.jsonl"))
    found: dict[str, list[Run]] = {}
    for name in options.variants:
        runs = known if name == DEFAULT else trained
        system, settings = ("ours" if name == DEFAULT else name), settings_of("ours", options.every)
        seeds = tuple(
            s
            for s in range(options.seeds)
            if not runs.find(options.task, system, s, settings, options.steps)
        )
        if seeds:
            order = ReturnsOrder(
                options.task, seeds, options.steps, options.every, options.threads, name
            )
            runs.add(train(order, "ours"))
        found[VARIANTS[name].title] = _find(runs, options, system, settings)
    theirs = _find(known, options, "sb3", settings_of("sb3", options.every))
    if theirs:
        found[TITLES["sb3"]] = theirs
    if not options.quick:
        trained.copy(RECORD)
    _report(found, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="8,192 steps of two seeds and two variants"
    )
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--task", default=TASK)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400_000, help="of each agent")
    parser.add_argument("--every", type=int, default=EVERY, help="steps between two looks")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch and MuJoCo")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="trained variants, a JSON line for each agent"
    )
    parser.add_argument(
        "--returns", type=Path, default=RESULTS.with_name("returns.jsonl"), help="of returns.py"
    )
    options = parser.parse_args()
    if options.quick:
        options.variants, options.seeds, options.steps, options.every = (
            [DEFAULT, "as_sb3"],
            2,
            8192,
            4096,
        )
        folder = Path(tempfile.mkdtemp(prefix="ppo-details-"))
        options.results, options.returns = folder / "quick.jsonl", folder / "returns.jsonl"
    options.results, options.returns = options.results.absolute(), options.returns.absolute()
    return options


def _find(runs: Runs, options: argparse.Namespace, system: str, settings: str) -> list[Run]:
    every = (
        runs.find(options.task, system, seed, settings, options.steps)
        for seed in range(options.seeds)
    )
    return [run for run in every if run is not None]


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
