"""Greedy episodes on Gymnasium's own batched CartPole, and when a peer has reached the target.

Needs NumPy and Gymnasium only: it runs in the peers' virtual environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np

TARGET_RETURN = 475.0
SCREENING, CONFIRMATION = 8, 100
WORTH_A_LOOK = 150.0
"""Mean return of recent training episodes from which on a look is taken: sampled actions fare worse
than greedy."""

Policy = Callable[[np.ndarray], np.ndarray]  # observations [N, 4] -> greedy actions [N]


@dataclass(frozen=True)
class PopulationOrder:
    """What a peer of benchmarks/population_cartpole.py is to do.

    recipe   of AgileRL
    threads  of torch
    speed_s  only the steps/s, over that many seconds; 0: train until the target is reached
    """

    seed: int
    threads: int
    recipe: str = "tutorial"
    speed_s: float = 0.0
    population: int = 8


def greedy_mean(policy: Policy, episodes: int, seed: int) -> float:
    """Mean return of that many episodes, all played at once."""
    environments = gymnasium.make_vec(
        "CartPole-v1", num_envs=episodes, vectorization_mode="vector_entry_point"
    )
    observation, _ = environments.reset(seed=seed)
    running, returns = np.ones(episodes, dtype=bool), np.zeros(episodes)
    while running.any():
        actions = np.asarray(policy(observation), dtype=np.int64)
        observation, reward, terminated, truncated, _ = environments.step(actions)
        returns += np.where(running, reward, 0.0)
        running &= ~(terminated | truncated)
    environments.close()
    return float(returns.mean())


def reaches_target(policy: Policy, seed: int) -> bool:
    """Whether 8 greedy episodes reach it, and then 100 fresh ones."""
    return (
        greedy_mean(policy, SCREENING, 2 * seed) >= TARGET_RETURN
        and greedy_mean(policy, CONFIRMATION, 2 * seed + 1) >= TARGET_RETURN
    )
