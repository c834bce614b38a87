"""PPO and A2C learn: three agents with seeds of their own reach the target, each within a given
number of steps."""

from __future__ import annotations

import pytest

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import CartPole, Pendulum
from podracer_core.environments.processes import PreprocessVecEnv
from support.learning import best_bounds

PPO_CARTPOLE = {"horizon": 32, "minibatch_size": 256, "epochs": 4, "learning_rate": 2e-3}
PPO_PENDULUM = {
    "horizon": 200,
    "minibatch_size": 400,
    "epochs": 10,
    "learning_rate": 2e-3,
    "gamma": 0.95,
}
PPO_ACROBOT = {"horizon": 32, "minibatch_size": 128, "epochs": 8, "learning_rate": 1e-3}
A2C_CARTPOLE = {"learning_rate": 2e-3}


def test_ppo_brings_cartpole_to_475():
    best = best_bounds(
        "ppo", CartPole, 32, PPO_CARTPOLE, target=475.0, env_steps=100_000, every=4096
    )
    assert all(agent.reached_at for agent in best), best


def test_ppo_brings_pendulum_to_minus_200_with_95_percent_confidence():
    best = best_bounds(
        "ppo",
        Pendulum,
        16,
        PPO_PENDULUM,
        target=-200.0,
        env_steps=200_000,
        every=16_000,
        confident=True,
    )
    assert all(agent.reached_at for agent in best), best


@pytest.mark.thorough
def test_ppo_brings_gymnasiums_acrobot_to_minus_100():
    def acrobot(num_envs: int) -> PreprocessVecEnv:
        return PreprocessVecEnv(EnvironmentSpec(id="Acrobot-v1"), num_envs, processes=1)

    best = best_bounds(
        "ppo", acrobot, 16, PPO_ACROBOT, target=-100.0, env_steps=300_000, every=20_480
    )
    assert all(agent.reached_at for agent in best), best


@pytest.mark.thorough
def test_a2c_brings_cartpole_to_475():
    best = best_bounds(
        "a2c", CartPole, 8, A2C_CARTPOLE, target=475.0, env_steps=500_000, every=20_000
    )
    assert all(agent.reached_at for agent in best), best
