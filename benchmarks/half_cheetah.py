"""SAC and TD3 on HalfCheetah-v5: one seed each, 300,000 environment steps, greedy return of 10 episodes every 10,000.

The curves go to docs/benchmarks/half_cheetah_<algorithm>.csv and half_cheetah.png; SAC has to pass 5,000 and TD3 4,000.
`--algorithm` runs one of them (two processes use two cores); `--plot` only draws the picture from the tables.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import tempfile
import time
from pathlib import Path

import torch
from report import Target, finish, print_table, versions

from podracer_core.algorithms.algorithm import algorithm_class
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments.registry import make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import evaluation_seeds

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
TARGETS = {"sac": 5000.0, "td3": 4000.0}
RECIPE = {
    "learning_rate": 1e-3,
    "batch_size": 128,
    "hidden_sizes": (256, 256),
    "horizon": 4,
    "updates_per_step": 1.0,
    "learning_starts": 10_000,
    "replay_capacity": 300_000,
}
NUM_ENVS, EPISODES, EVERY = 2, 10, 10_000
COLUMNS = ("env_steps", "mean_return", "half_width_95", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 steps each: whether it runs, under a minute")
    parser.add_argument("--algorithm", choices=sorted(TARGETS), action="append", help="only this one")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", action="store_true", help="draw the picture from the tables that are there")
    options = parser.parse_args()
    names = options.algorithm or sorted(TARGETS)
    if options.plot:
        plot()
        return
    print(versions("torch", "mujoco-core", "gymnasium"), "· 1 torch thread")
    torch.set_num_threads(1)
    curves = {}
    for name in names:
        if options.quick:
            with tempfile.TemporaryDirectory() as folder:
                curves[name] = train(name, 2_000, options.seed, Path(folder, "curve.csv"), every=1_000, starts=500)
        else:
            curves[name] = train(name, options.steps, options.seed, FOLDER / f"half_cheetah_{name}.csv")
    if not options.quick and not options.algorithm:
        plot()
    print_table(
        "Greedy return of 10 episodes",
        ["algorithm", "best", "last", "environment steps", "seconds"],
        [
            [name, max(row[1] for row in curve), curve[-1][1], curve[-1][0], curve[-1][3]]
            for name, curve in curves.items()
        ],
    )
    finish(
        "half_cheetah",
        {name: [list(row) for row in curve] for name, curve in curves.items()},
        {name: Target(max(row[1] for row in curve), TARGETS[name]) for name, curve in curves.items()},
    )


def train(
    name: str, steps: int, seed: int, table: Path, *, every: int = EVERY, starts: int | None = None
) -> list[tuple[int, float, float, float]]:
    """One agent; each look is a row of `table` at once."""
    shared = RECIPE if starts is None else RECIPE | {"learning_starts": starts}
    cohort = CohortConfig(name, (MemberConfig(name, seed),), shared)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MuJoCo writes its log where it stands
        make = functools.partial(make_vec_environment, EnvironmentSpec(id="HalfCheetah-v5"), processes=1)
        environment, evaluator = make(NUM_ENVS), GreedyEvaluator(make)
        algorithm = algorithm_class(name)(cohort, environment.observation_space, environment.action_space)
        collector = Collector(environment, algorithm.actor, torch.tensor([seed]))
        curve: list[tuple[int, float, float, float]] = []
        taken, start = 0, time.perf_counter()
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            while taken < steps:
                rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
                metrics = algorithm.update(rollout)
                taken += rollout.env_steps
                if taken // every > len(curve):
                    (result,) = evaluator.evaluate(algorithm.actor, evaluation_seeds(seed + taken, 0, EPISODES))
                    row = (taken, result.mean, result.half_width, round(time.perf_counter() - start, 1))
                    curve.append(row)
                    writer.writerow(row)
                    file.flush()
                    losses = ", ".join(f"{key} {float(value[0]):.3g}" for key, value in metrics.items())
                    print(f"{name}: {taken:,} steps, return {result.mean:,.0f}, {row[3]:,.0f} s ({losses})", flush=True)
        environment.close()
        evaluator.close()
        os.chdir(FOLDER)
    return curve


def plot() -> None:
    """docs/benchmarks/half_cheetah.png, from the tables."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for name, target in TARGETS.items():
        table = FOLDER / f"half_cheetah_{name}.csv"
        if not table.exists():
            continue
        with table.open() as file:
            rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
        steps, mean, error = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
        (line,) = axes.plot(steps, mean, label=name.upper())
        axes.fill_between(
            steps,
            [m - e for m, e in zip(mean, error, strict=True)],
            [m + e for m, e in zip(mean, error, strict=True)],
            color=line.get_color(),
            alpha=0.2,
        )
        axes.axhline(target, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set(
        xlabel="environment steps", ylabel="greedy return, mean of 10 episodes", title="HalfCheetah-v5, one seed each"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(FOLDER / "half_cheetah.png")


if __name__ == "__main__":
    main()
