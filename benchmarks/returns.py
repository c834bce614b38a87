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
import tempfile
from collections.abc import Iterator
from pathlib import Path

from peers.ppo_recipes import ARGUMENTS
from peers.returns_order import EPISODES, ReturnsOrder
from peers.returns_report import plot, report, write_curves
from peers.returns_runs import Run, Runs
from peers.returns_training import TITLES, settings_of, train
from report import versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "runs" / "benchmarks" / "returns.jsonl"
RECORD = ROOT / "docs" / "benchmarks" / "returns.jsonl"


def main() -> None:
    options = _options()
    table, picture = RECORD.with_suffix(".csv"), RECORD.with_suffix(".png")
    if options.plot:
        plot(table, picture)
        return
    packages = ["stable-baselines3"] if importlib.util.find_spec("stable_baselines3") else []
    print(
        versions("torch", "mujoco-core", "gymnasium", *packages),
        f"· {options.threads} threads, looks of {EPISODES}",
    )
    systems = [system for system in options.system or TITLES if system == "ours" or packages]
    if not packages:
        print("Stable-Baselines3 is not installed: only what was trained before is shown")
    runs = Runs(options.results, RECORD)
    for task in options.task or ARGUMENTS:
        for system in systems:
            for seeds in _missing(runs, options, task, system):
                runs.add(
                    train(
                        ReturnsOrder(task, seeds, options.steps, options.every, options.threads),
                        system,
                    )
                )
    found = {
        task: {system: _done(runs, options, task, system) for system in TITLES}
        for task in ARGUMENTS
    }
    if not options.quick:
        runs.copy(RECORD)
        write_curves(found, table)
        if importlib.util.find_spec("matplotlib"):
            plot(table, picture)
    report({task: found[task] for task in options.task or ARGUMENTS}, options.steps)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="HalfCheetah, 8,192 steps of two seeds: under a minute"
    )
    parser.add_argument(
        "--task", action="append", choices=list(ARGUMENTS), help="only this one; may be repeated"
    )
    parser.add_argument(
        "--system",
        action="append",
        choices=list(TITLES),
        help="train only this one; may be repeated",
    )
    parser.add_argument("--seeds", type=int, default=5, help="of ours")
    parser.add_argument(
        "--cohort", type=int, default=5, help="seeds of ours at once; an interrupted cohort is lost"
    )
    parser.add_argument(
        "--sb3-seeds", type=int, help="of Stable-Baselines3; as many as ours unless given"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="of each agent")
    parser.add_argument("--every", type=int, default=25_000, help="steps between two looks")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch and MuJoCo")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="trained agents, a JSON line each"
    )
    parser.add_argument(
        "--plot", action="store_true", help="draw the picture from the table that is there"
    )
    options = parser.parse_args()
    if options.quick:
        options.task, options.seeds, options.steps, options.every = (
            ["HalfCheetah-v5"],
            2,
            8192,
            4096,
        )
        options.results = Path(tempfile.mkdtemp(prefix="returns-"), "quick.jsonl")
    options.results = options.results.absolute()
    return options


def _seeds(options: argparse.Namespace, system: str) -> range:
    return range(
        options.seeds if system == "ours" or options.sb3_seeds is None else options.sb3_seeds
    )


def _done(runs: Runs, options: argparse.Namespace, task: str, system: str) -> list[Run]:
    settings = settings_of(system, options.every)
    found = (
        runs.find(task, system, seed, settings, options.steps) for seed in _seeds(options, system)
    )
    return [run for run in found if run is not None]


def _missing(
    runs: Runs, options: argparse.Namespace, task: str, system: str
) -> Iterator[tuple[int, ...]]:
    """The seeds of each process: ours are the members of a cohort."""
    known = {run.seed for run in _done(runs, options, task, system)}
    missing = tuple(seed for seed in _seeds(options, system) if seed not in known)
    size = options.cohort if system == "ours" else 1
    yield from (missing[first : first + size] for first in range(0, len(missing), size))


if __name__ == "__main__":
    main()
