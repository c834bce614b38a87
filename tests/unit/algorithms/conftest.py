"""Rollouts of random numbers for tests; all sizes differ, so that nothing can broadcast unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.ppo import PPO
from podracer_core.buffers import EpisodeStatistics, Rollout
from podracer_core.networks import Actor

MEMBERS, ENVS, HORIZON, OBSERVATIONS = 3, 4, 5, 6
OBSERVATION_SPACE = gymnasium.spaces.Box(-10, 10, (OBSERVATIONS,))
ACTION_SPACES: dict[str, gymnasium.Space[Any]] = {
    "discrete": gymnasium.spaces.Discrete(7),
    "box": gymnasium.spaces.Box(-2.0, 2.0, (2,)),
}
SHARED = {"hidden_sizes": (8, 9), "minibatch_size": 7, "epochs": 2, "horizon": HORIZON}
# Every hyperparameter differs from member to member.
HYPERPARAMETERS: tuple[dict[str, float], ...] = (
    {"learning_rate": 1e-3, "gamma": 0.9, "gae_lambda": 0.95, "clip_range": 0.2, "entropy_coefficient": 0.0},
    {"learning_rate": 3e-3, "gamma": 0.99, "gae_lambda": 0.8, "clip_range": 0.1, "entropy_coefficient": 0.01},
    {"learning_rate": 1e-2, "gamma": 0.8, "gae_lambda": 1.0, "value_coefficient": 1.0, "max_gradient_norm": 0.05},
)


def cohort(*members: int, **shared: Any) -> CohortConfig:
    """The members with these numbers."""
    return CohortConfig(
        "ppo", tuple(MemberConfig(f"agent-{m}", 10 + m, HYPERPARAMETERS[m]) for m in members), SHARED | shared
    )


def build_ppo(kind: str, *members: int, **shared: Any) -> PPO:
    return PPO(cohort(*(members or range(MEMBERS)), **shared), OBSERVATION_SPACE, ACTION_SPACES[kind])


def build_rollout(actor: Actor, seed: int = 0) -> Rollout:
    """Actions come from the actor; everything else is noise, with ends of all kinds."""
    generator = torch.Generator().manual_seed(seed)
    rows = (HORIZON, actor.members, ENVS)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    terminated, truncated = torch.rand(2, *rows, generator=generator) < 0.15
    observation = numbers(HORIZON + 1, *rows[1:], OBSERVATIONS)
    ended = (terminated | truncated).unsqueeze(-1)
    steps = torch.zeros(actor.members, dtype=torch.int64)
    noise = actor.draw_noise(torch.arange(actor.members * ENVS).view(-1, ENVS), steps, HORIZON)
    with torch.no_grad():
        acted = [actor.act(observation[t], noise[t]) for t in range(HORIZON)]
    return Rollout(
        observation=observation,
        final_observation=torch.where(ended, numbers(*rows, OBSERVATIONS), observation[1:]),
        action=torch.stack([action for action, _ in acted]),
        log_prob=torch.stack([log_prob for _, log_prob in acted]),
        reward=numbers(*rows),
        terminated=terminated,
        truncated=truncated,
        valid=torch.ones(rows, dtype=torch.bool),
        first_step=steps,
        episodes=EpisodeStatistics(steps, steps.double(), steps),
    )


def slice_rollout(rollout: Rollout, member: int, policy_version: int = 0) -> Rollout:
    """One member of it."""
    part = slice(member, member + 1)
    names = ("observation", "final_observation", "action", "log_prob", "reward", "terminated", "truncated", "valid")
    statistics = rollout.episodes
    return Rollout(
        **{name: getattr(rollout, name)[:, part].clone() for name in names},
        first_step=rollout.first_step[part],
        episodes=EpisodeStatistics(statistics.count[part], statistics.return_sum[part], statistics.length_sum[part]),
        policy_version=policy_version,
    )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_ppo() -> Callable[..., PPO]:
    """make_ppo(kind, *member_numbers, **shared): kind is "discrete" or "box"."""
    return build_ppo


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    """make_rollout(actor, seed=0)"""
    return build_rollout


@pytest.fixture
def member_rollout() -> Callable[..., Rollout]:
    """member_rollout(rollout, member, policy_version=0)"""
    return slice_rollout
