"""PPO on Ant-v5 on a CPU, 10 epochs: how much of the environment's own speed training keeps, and
how it learns.

Speed: the same 64 environments step with random actions and under training in turn, in this
process; the ratio of environment steps/s is what counts. Curve: greedy return of 10 episodes every
100,000 of 3 million steps, written to docs/benchmarks/ant_ppo.csv and .png. `--plot` only draws the
picture from the table."""

from __future__ import annotations

import argparse
import csv
import functools
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from report import Target, finish, print_table, spread, versions

from podracer_core.algorithms import Algorithm, CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import VecEnvironment, make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.native_settings import NATIVE_SETTINGS
from podracer_core.random_numbers import evaluation_seeds

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
RECIPE = {
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "horizon": 64,
    "minibatch_size": 1024,
    "epochs": 10,
    "hidden_sizes": (64, 64),
    "initial_log_std": -0.5,
    "learning_rate_schedule": "linear",
    "schedule_steps": 3_000_000,
}
NUM_ENVS, EPISODES, EVERY = 64, 10, 100_000
COLUMNS = ("env_steps", "mean_return", "half_width_95", "training_seconds")
TASK, TABLE = "Ant-v5", FOLDER / "ant_ppo.csv"

Training = tuple[VecEnvironment, Algorithm, Collector]
Curve = list[tuple[int, float, float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two short repeats of the speed, no curve: under a minute",
    )
    parser.add_argument(
        "--steps", type=int, default=3_000_000, help="of the curve; 0 leaves it out"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="of torch and of MuJoCo")
    parser.add_argument(
        "--plot", action="store_true", help="draw the picture from the table that is there"
    )
    options = parser.parse_args()
    picture = FOLDER / "ant_ppo.png", "PPO on Ant-v5, one seed, on a CPU", {"PPO": TABLE}, {}
    if options.plot:
        plot(*picture)
        return
    if "GOMP_SPINCOUNT" not in os.environ:
        # As in a pod: torch's threads, spinning while they wait, would take a core from MuJoCo's.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | NATIVE_SETTINGS)
    torch.set_num_threads(options.threads)
    print(versions("torch", "mujoco-core", "gymnasium"), f"· {options.threads} threads")
    repeats, rounds = (2, 2) if options.quick else (5, 5)
    alone, trained = measure_speed(options.seed, repeats, rounds)
    ratios = [ours / bound for ours, bound in zip(trained, alone, strict=True)]
    print_table(
        f"Environment steps/s, {NUM_ENVS} environments, median (least – greatest) of {repeats}",
        ["", "steps/s"],
        [
            ["random actions", spread(alone)],
            ["PPO, 10 epochs, learning included", spread(trained)],
            ["ratio", spread(ratios)],
        ],
    )
    curve: Curve = []
    if not options.quick and options.steps:
        curve = train(make_training(options.seed), TASK, options.steps, options.seed, TABLE)
        plot(*picture)
        best = max(curve, key=lambda row: row[1])
        print(
            f"\nbest greedy return {best[1]:,.0f} after {best[0]:,} steps; last {curve[-1][1]:,.0f}"
        )
    finish(
        "ant",
        {
            "steps_per_s_alone": alone,
            "steps_per_s_training": trained,
            "curve": [list(row) for row in curve],
        },
        {"training_over_environment": Target(statistics.median(ratios), 0.6)},
    )


def make_training(
    seed: int,
    task: str = TASK,
    name: str = "ppo",
    num_envs: int = NUM_ENVS,
    recipe: Mapping[str, Any] = RECIPE,
) -> Training:
    """Environment, algorithm and collector of one agent."""
    environment = make_vec_environment(EnvironmentSpec(id=task), num_envs)
    cohort = CohortConfig(name, (MemberConfig(name, seed),), recipe)
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space
    )
    return environment, algorithm, Collector(environment, algorithm.actor, torch.tensor([seed]))


def measure_speed(seed: int, repeats: int, rounds: int) -> tuple[list[float], list[float]]:
    """Steps/s with random actions, and under training, in turn in this process."""
    environment, algorithm, collector = make_training(seed)
    alone_environment = make_vec_environment(EnvironmentSpec(id=TASK), NUM_ENVS)
    alone_environment.reset(torch.arange(NUM_ENVS))
    horizon = algorithm.horizon
    actions = torch.rand(horizon, NUM_ENVS, *alone_environment.action_space.shape) * 2 - 1
    alone, trained = [], []
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        for _ in range(rounds):
            for action in actions:
                alone_environment.step(action)
        middle = time.perf_counter()
        for _ in range(rounds):
            algorithm.update(collector.collect(horizon, policy_version=algorithm.version))
        end = time.perf_counter()
        if repeat:  # the first one warms up
            alone.append(rounds * horizon * NUM_ENVS / (middle - start))
            trained.append(rounds * horizon * NUM_ENVS / (end - middle))
    environment.close()
    alone_environment.close()
    return alone, trained


def train(
    training: Training, task: str, steps: int, seed: int, table: Path, every: int = EVERY
) -> Curve:
    """One agent; each look is a row of `table` at once. Looks are not counted as training time."""
    environment, algorithm, collector = training
    evaluator = GreedyEvaluator(functools.partial(make_vec_environment, EnvironmentSpec(id=task)))
    curve: Curve = []
    taken, seconds = 0, 0.0
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        while taken < steps:
            start = time.perf_counter()
            rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
            algorithm.update(rollout)
            seconds += time.perf_counter() - start
            taken += rollout.env_steps
            if taken // every > len(curve):
                (result,) = evaluator.evaluate(
                    algorithm.actor, evaluation_seeds(seed + taken, 0, EPISODES)
                )
                row = (taken, round(result.mean, 1), round(result.half_width, 1), round(seconds, 1))
                curve.append(row)
                writer.writerow(row)
                file.flush()
                left = (steps - taken) / taken * seconds
                print(
                    f"{taken:,} steps, return {result.mean:,.0f} ± {result.half_width:,.0f}, "
                    f"{taken / seconds:,.0f} steps/s, {left:,.0f} s left",
                    flush=True,
                )
    environment.close()
    evaluator.close()
    return curve


def plot(
    picture: Path, title: str, tables: Mapping[str, Path], targets: Mapping[str, float]
) -> None:
    """Draw the curves of those tables that there are, and what they have to reach."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for name, table in tables.items():
        if not table.exists():
            continue
        with table.open() as file:
            rows = [[float(cell) for cell in row[:3]] for row in list(csv.reader(file))[1:]]
        steps, mean, error = zip(*rows, strict=True)
        (line,) = axes.plot(steps, mean, label=name)
        low, high = ([m + sign * e for m, e in zip(mean, error, strict=True)] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2)
        if name in targets:
            axes.axhline(targets[name], color=line.get_color(), linestyle=":", linewidth=1)
    axes.set(
        xlabel="environment steps",
        ylabel=f"greedy return, mean of {EPISODES} episodes",
        title=title,
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture)


if __name__ == "__main__":
    main()
