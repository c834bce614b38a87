"""Rollouts of random numbers for tests; all sizes differ, so that nothing can broadcast
unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.algorithms import CohortConfig, MemberConfig, OnPolicy, algorithm_class
from podracer_core.buffers import EpisodeStatistics, Rollout
from podracer_core.catalogue import find_algorithm
from podracer_core.networks import Actor

MEMBERS, ENVS, HORIZON, OBSERVATIONS = 3, 4, 5, 6
OBSERVATION_SPACE = gymnasium.spaces.Box(-10, 10, (OBSERVATIONS,))
IMAGE_SPACE = gymnasium.spaces.Box(0, 255, (36, 37, 2), np.uint8)
ACTION_SPACES: dict[str, gymnasium.Space[Any]] = {
    "discrete": gymnasium.spaces.Discrete(7),
    "box": gymnasium.spaces.Box(-2.0, 2.0, (2,)),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([3, 2, 4]),
    "multi_binary": gymnasium.spaces.MultiBinary(2),
    "image": gymnasium.spaces.Discrete(7),
}
# Sizes of the independent choices that a mask allows or forbids.
CHOICES = {"discrete": [7], "image": [7], "multi_discrete": [3, 2, 4]}
SHARED = {"hidden_sizes": (8, 9), "minibatch_size": 7, "epochs": 2, "horizon": HORIZON}
# Every hyperparameter differs from member to member.
HYPERPARAMETERS: tuple[dict[str, float], ...] = (
    {
        "learning_rate": 1e-3,
        "gamma": 0.9,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "entropy_coefficient": 0.0,
    },
    {
        "learning_rate": 3e-3,
        "gamma": 0.99,
        "gae_lambda": 0.8,
        "clip_range": 0.1,
        "entropy_coefficient": 0.01,
    },
    {
        "learning_rate": 1e-2,
        "gamma": 0.8,
        "gae_lambda": 1.0,
        "value_coefficient": 1.0,
        "max_gradient_norm": 0.05,
    },
)


def spaces_of(kind: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Of observations and actions."""
    return IMAGE_SPACE if kind == "image" else OBSERVATION_SPACE, ACTION_SPACES[kind]


def build(name: str, kind: str, *members: int, **shared: Any) -> OnPolicy:
    """The members with these numbers, all of them by default; the algorithm takes of the settings
    what it knows."""
    known = find_algorithm(name).defaults()
    cohort = CohortConfig(
        name,
        tuple(
            MemberConfig(
                f"agent-{m}",
                10 + m,
                {key: HYPERPARAMETERS[m][key] for key in HYPERPARAMETERS[m] if key in known},
            )
            for m in members or range(MEMBERS)
        ),
        {key: value for key, value in SHARED.items() if key in known} | shared,
    )
    algorithm = algorithm_class(name)(cohort, *spaces_of(kind))
    assert isinstance(algorithm, OnPolicy)
    return algorithm


def build_rollout(actor: Actor, seed: int = 0, masked: str = "") -> Rollout:
    """Actions come from the actor; everything else is noise, with ends of all kinds. `masked` is a
    kind of action."""
    generator = torch.Generator().manual_seed(seed)
    rows = (HORIZON, actor.members, ENVS)
    image = actor.policy(0).mean.numel() != OBSERVATIONS

    def numbers(*shape: int) -> torch.Tensor:
        if image and shape[3:]:
            return torch.randint(
                256, (*shape[:3], *IMAGE_SPACE.shape), dtype=torch.uint8, generator=generator
            )
        return torch.randn(*shape, generator=generator)

    terminated, truncated = torch.rand(2, *rows, generator=generator) < 0.15
    observation = numbers(HORIZON + 1, *rows[1:], OBSERVATIONS)
    ended = (terminated | truncated).view(*rows, *(1,) * (observation.dim() - 3))
    action_mask = None
    if masked:
        sizes = CHOICES[masked]
        action_mask = torch.rand(HORIZON + 1, *rows[1:], sum(sizes), generator=generator) < 0.5
        for part in action_mask.split(sizes, -1):
            part[..., 0] |= ~part.any(-1)
    steps = torch.zeros(actor.members, dtype=torch.int64)
    noise = actor.draw_noise(torch.arange(actor.members * ENVS).view(-1, ENVS), steps, HORIZON)
    with torch.no_grad():
        acted = [
            actor.act(observation[t], noise[t], None if action_mask is None else action_mask[t])
            for t in range(HORIZON)
        ]
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
        action_mask=action_mask,
    )


def select_members(rollout: Rollout, *members: int, policy_version: int = 0) -> Rollout:
    """Some members of it, in this order."""
    which = list(members)
    rows = {
        field.name: getattr(rollout, field.name)[:, which].clone()
        for field in fields(Rollout)
        if isinstance(getattr(rollout, field.name), torch.Tensor) and field.name != "first_step"
    }
    statistics = EpisodeStatistics(
        *(getattr(rollout.episodes, field.name)[which] for field in fields(EpisodeStatistics))
    )
    return replace(
        rollout,
        **rows,
        first_step=rollout.first_step[which],
        episodes=statistics,
        policy_version=policy_version,
    )


class Densities:
    """torch.distributions over a network's outputs; what a mask forbids has no probability."""

    def __init__(
        self, kind: str, output: torch.Tensor, log_std: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        self.parts: list[Any]
        if kind == "box":
            std = log_std.exp().unsqueeze(1)
            self.parts = [
                torch.distributions.Normal(output[..., j], std[..., j])
                for j in range(output.shape[-1])
            ]
        elif kind == "multi_binary":
            self.parts = [
                torch.distributions.Bernoulli(logits=column) for column in output.unbind(-1)
            ]
        else:
            allowed = torch.ones_like(output) if mask is None else mask.to(output.dtype)
            parts = zip(
                output.split(CHOICES[kind], -1), allowed.split(CHOICES[kind], -1), strict=True
            )
            self.parts = [
                torch.distributions.Categorical(probs=part.softmax(-1) * share)
                for part, share in parts
            ]

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        columns = action.reshape(*action.shape[:2], -1).unbind(-1)
        return torch.stack(
            [p.log_prob(column.float()) for p, column in zip(self.parts, columns, strict=True)]
        ).sum(0)

    def entropy(self) -> torch.Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_on_policy() -> Callable[..., OnPolicy]:
    """make_on_policy(name, kind, *member_numbers, **shared): kind is a key of ACTION_SPACES."""
    return build


@pytest.fixture
def spaces() -> Callable[[str], tuple[gymnasium.Space[Any], gymnasium.Space[Any]]]:
    """spaces(kind): of observations and actions"""
    return spaces_of


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    """make_rollout(actor, seed=0, masked="")"""
    return build_rollout


@pytest.fixture
def member_rollout() -> Callable[..., Rollout]:
    """member_rollout(rollout, *members, policy_version=0)"""
    return select_members


@pytest.fixture
def densities() -> Callable[..., Densities]:
    """densities(kind, output, log_std, mask): log_prob(action) and entropy()"""
    return Densities
