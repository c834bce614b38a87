"""The off-policy algorithms learn: three agents with seeds of their own reach the target, each
within so many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from podracer_core.environments import (
    Acrobot,
    CartPole,
    MountainCarContinuous,
    Pendulum,
    VecEnvironment,
)
from support.learning import best_bounds

pytestmark = pytest.mark.thorough
SMALL = {"hidden_sizes": (64, 64)}
CARTPOLE = SMALL | {
    "batch_size": 64,
    "horizon": 4,
    "updates_per_step": 0.5,
    "learning_rate": 2e-3,
    "target_rate": 0.05,
    "exploration_steps": 5_000,
    "replay_capacity": 50_000,
}
PENDULUM = SMALL | {
    "batch_size": 128,
    "horizon": 2,
    "updates_per_step": 0.5,
    "learning_starts": 400,
    "replay_capacity": 20_000,
}
PENDULUM_SAC = PENDULUM | {"learning_rate": 3e-3, "target_rate": 0.02}
DETERMINISTIC = PENDULUM | {"learning_rate": 2e-3, "target_rate": 0.01}
CROSSQ = PENDULUM | {"actor_hidden_sizes": (64, 64), "learning_rate": 1e-3}
FLASH = PENDULUM | {"hidden_sizes": (32, 32), "learning_rate": 1e-3, "schedule_updates": 10_000}
REDQ = PENDULUM | {"updates_per_step": 5, "learning_rate": 1e-3, "batch_size": 64}


def assert_learned(
    name: str,
    make_environment: Callable[[int], VecEnvironment],
    envs: int,
    shared: dict[str, Any],
    target: float,
    env_steps: int,
    every: int,
) -> None:
    torch.set_num_threads(1)
    best = best_bounds(name, make_environment, envs, shared, target, env_steps, every)
    assert all(agent.reached_at is not None for agent in best), best


@pytest.mark.parametrize("name", ["dqn", "d3qn", "qr_dqn"])  # D3QN is Double and Dueling DQN
def test_cartpole_to_475_within_100_000_steps(name):
    shared = CARTPOLE | ({"quantiles": 20} if name == "qr_dqn" else {})
    assert_learned(name, CartPole, 8, shared, 475.0, 100_000, 2_000)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("ddpg", DETERMINISTIC | {"actor_learning_rate_scale": 0.5}),
        ("td3", DETERMINISTIC),
        ("sac", PENDULUM_SAC),
        ("modsac", PENDULUM_SAC),
    ],
)
def test_pendulum_to_minus_200_within_20_000_steps(name, shared):
    assert_learned(name, Pendulum, 8, shared, -200.0, 20_000, 1_000)


def test_redq_takes_pendulum_to_minus_200_within_10_000_steps():
    assert_learned("redq", Pendulum, 4, REDQ, -200.0, 10_000, 500)


def test_crossq_takes_pendulum_to_minus_200_within_10_000_steps():
    assert_learned("crossq", Pendulum, 4, CROSSQ, -200.0, 10_000, 1_000)


@pytest.mark.slow  # three minutes
def test_flash_sac_takes_pendulum_to_minus_200_within_15_000_steps():
    assert_learned("flash_sac", Pendulum, 4, FLASH, -200.0, 15_000, 1_000)


@pytest.mark.timeout(900)  # minutes on one busy core
def test_discrete_sac_takes_cartpole_to_475_within_100_000_steps():
    shared = CARTPOLE | {"actor_learning_rate_scale": 0.15, "target_entropy_scale": 0.5}
    del shared["exploration_steps"]
    assert_learned("discrete_sac", CartPole, 8, shared, 475.0, 100_000, 2_000)


@pytest.mark.slow
def test_correlated_exploration_takes_sac_over_the_mountain_within_50_000_steps():
    shared = SMALL | {
        "batch_size": 256,
        "horizon": 8,
        "updates_per_step": 0.25,
        "learning_starts": 5_000,
        "learning_rate": 1e-3,
        "target_rate": 0.01,
        "exploration": "correlated",
        "exploration_period": 32,
        "normalize_observations": True,
    }
    assert_learned("sac", MountainCarContinuous, 8, shared, 90.0, 50_000, 2_500)


@pytest.mark.slow
def test_d3qn_takes_acrobot_to_minus_100_within_300_000_steps():
    shared = CARTPOLE | {
        "updates_per_step": 0.25,
        "learning_rate": 1e-3,
        "target_rate": 0.02,
        "exploration_steps": 10_000,
        "n_step": 3,
        "replay_capacity": 300_000,
    }
    assert_learned("d3qn", Acrobot, 8, shared, -100.0, 300_000, 4_000)
