"""Records the training curves that benchmarks/scaling.py replays: PPO on HalfCheetah-v5, a cohort
of four a process.

Each row of curves.csv is a look at one agent: learning rate, discount, seed, CPU seconds that its
cohort had trained (evaluation left out), environment steps of the agent, mean greedy return of 8
episodes. One thread, and the process's CPU time instead of the wall's, so that other work on the
machine does not show. All runs take some 20 minutes of one core: `python
benchmarks/simulation/record_curves.py`."""

from __future__ import annotations

import argparse
import csv
import functools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("curves.csv")
COLUMNS = ("learning_rate", "gamma", "seed", "device_s", "env_steps", "mean_return")
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
GAMMAS = (0.95, 0.98, 0.995)
SEEDS = (0, 1)
RECIPE = {
    "horizon": 128,
    "minibatch_size": 512,
    "epochs": 8,
    "hidden_sizes": (64, 64),
    "initial_log_std": -0.5,
    "gae_lambda": 0.95,
}
ENVS_PER_MEMBER, EPISODES = 16, 8
ENVIRONMENT = "HalfCheetah-v5"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=200.0, help="CPU seconds of training of a cohort"
    )
    parser.add_argument(
        "--every", type=float, default=5.0, help="CPU seconds of training between two looks"
    )
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    table = options.table.resolve()
    with tempfile.TemporaryDirectory() as scratch, table.open("w", newline="") as file:
        os.chdir(scratch)  # MuJoCo writes its log where it stands
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for seed in SEEDS:
            for gamma in GAMMAS:
                for row in record(gamma, seed, options.seconds, options.every):
                    writer.writerow(row)
                file.flush()
                print(f"gamma {gamma:g}, seed {seed}: recorded", flush=True)


def record(gamma: float, seed: int, seconds: float, every: float) -> Iterator[tuple[Any, ...]]:
    """The rows of one cohort, whose members differ in their learning rates."""
    import torch

    from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
    from podracer_core.catalogue.environments import EnvironmentSpec
    from podracer_core.collect import Collector
    from podracer_core.environments import make_vec_environment
    from podracer_core.evaluate import GreedyEvaluator
    from podracer_core.random_numbers import evaluation_seeds

    torch.set_num_threads(1)
    seeds = [1000 * seed + index for index in range(len(LEARNING_RATES))]
    members = tuple(
        MemberConfig(f"agent-{own}", own, {"learning_rate": rate, "gamma": gamma})
        for own, rate in zip(seeds, LEARNING_RATES, strict=True)
    )
    make = functools.partial(make_vec_environment, EnvironmentSpec(id=ENVIRONMENT), processes=1)
    environment, evaluator = make(len(members) * ENVS_PER_MEMBER), GreedyEvaluator(make)
    algorithm = algorithm_class("ppo")(
        CohortConfig("ppo", members, RECIPE),
        environment.observation_space,
        environment.action_space,
    )
    collector = Collector(environment, algorithm.actor, torch.tensor(seeds))
    trained_s, taken, looks = 0.0, 0, 0
    while trained_s < seconds:
        if trained_s >= looks * every:
            results = evaluator.evaluate(
                algorithm.actor, evaluation_seeds(seed + looks, 0, EPISODES)
            )
            for rate, result in zip(LEARNING_RATES, results, strict=True):
                yield rate, gamma, seed, round(trained_s, 2), taken, round(result.mean, 1)
            looks += 1
        start = time.process_time()
        rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
        algorithm.update(rollout)
        trained_s += time.process_time() - start
        taken += rollout.env_steps // len(members)
    environment.close()
    evaluator.close()


if __name__ == "__main__":
    main()
