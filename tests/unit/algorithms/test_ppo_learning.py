"""PPO learns: three agents with seeds of their own reach the target, each within a given number of steps."""

from __future__ import annotations

from typing import Any

import torch

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.ppo import PPO
from podracer_core.collect import Collector
from podracer_core.environments.cartpole import CartPole
from podracer_core.environments.pendulum import Pendulum
from podracer_core.evaluate import Evaluator
from podracer_core.random_streams import evaluation_seeds

SEEDS = (11, 22, 33)
EPISODES = 32


def best_bounds(
    make_environment: Any, envs: int, shared: dict[str, Any], target: float, updates: int, every: int
) -> list[tuple[float, float]]:
    """(mean, lower bound) of the best evaluated snapshot of every agent, on episodes that nobody trains on."""
    environment = make_environment(len(SEEDS) * envs)
    cohort = CohortConfig("ppo", tuple(MemberConfig(str(seed), seed) for seed in SEEDS), shared)
    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    collector = Collector(environment, algorithm.actor, torch.tensor(SEEDS))
    evaluator = Evaluator(make_environment)
    best = [(-1e9, -1e9)] * len(SEEDS)
    for update in range(1, updates + 1):
        algorithm.update(collector.collect(algorithm.horizon, policy_version=algorithm.version))
        if update % every == 0:
            results = evaluator.evaluate(algorithm.actor, evaluation_seeds(update, 0, EPISODES))
            best = [max(old, (new.mean, new.lower_bound)) for old, new in zip(best, results, strict=True)]
            if min(mean for mean, _ in best) >= target and min(bound for _, bound in best) > min(target, 0):
                break
    return best


def test_cartpole_to_475() -> None:
    shared = {"horizon": 32, "minibatch_size": 256, "epochs": 8, "learning_rate": 2e-3}
    best = best_bounds(CartPole, 32, shared, target=475.0, updates=60, every=4)
    assert all(mean >= 475.0 for mean, _ in best), best


def test_pendulum_to_minus_200_with_95_percent_confidence() -> None:
    shared = {"horizon": 200, "minibatch_size": 400, "epochs": 10, "learning_rate": 2e-3, "gamma": 0.95}
    best = best_bounds(Pendulum, 16, shared, target=-200.0, updates=60, every=5)
    assert all(bound > -200.0 for _, bound in best), best
