"""A policy alone acts as the member that it was taken from, and survives torch.export."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.ppo import PPO
from podracer_core.errors import InvalidInput

OBSERVATION = gymnasium.spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
ACTIONS: dict[str, gymnasium.Space[Any]] = {
    "discrete": gymnasium.spaces.Discrete(4, start=3),
    "box": gymnasium.spaces.Box(np.array([[-2.0], [0.0]], np.float32), np.array([[2.0], [1.0]], np.float32)),
}


def trained(kind: str) -> PPO:
    """Not trained, but with weights, a spread and a normalizer that leave nothing at its neutral value."""
    torch.manual_seed(0)
    members = tuple(MemberConfig(str(seed), seed) for seed in (5, 6, 7))
    algorithm = PPO(CohortConfig("ppo", members, {"hidden_sizes": (8, 9)}), OBSERVATION, ACTIONS[kind])
    for tensor in (*algorithm.actor.network.weights, *algorithm.actor.network.biases, algorithm.actor.mean):
        tensor.normal_()
    algorithm.actor.scale.uniform_(0.5, 2.0)
    return algorithm


@pytest.mark.parametrize("kind", ACTIONS)
def test_policy_equals_the_greedy_actor(kind: str) -> None:
    actor = trained(kind).actor
    observation = 5 * torch.randn(3, 11, 2, 3)
    greedy = actor.greedy(observation)
    for member in range(3):
        action = actor.policy(member)(observation[member])
        expected = greedy[member] + (3 if kind == "discrete" else 0)
        torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-5)
        assert ACTIONS[kind].contains(action[0].numpy() if kind == "box" else int(action[0]))


@pytest.mark.parametrize("kind", ACTIONS)
def test_policy_exports_with_any_batch_size(kind: str) -> None:
    policy = trained(kind).actor.policy(1)
    batch = torch.export.Dim("batch")
    program = torch.export.export(policy, (torch.zeros(2, 2, 3),), dynamic_shapes=({0: batch},)).module()
    for size in (1, 2, 5):
        observation = torch.randn(size, 2, 3)
        assert torch.equal(program(observation), policy(observation))


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_worker_needs_only_the_actor_state(kind: str) -> None:
    algorithm = trained(kind)
    worker = PPO.make_actor(algorithm.cohort, OBSERVATION, ACTIONS[kind])
    worker.load_state(algorithm.actor_state())
    observation = torch.randn(3, 4, 2, 3)
    noise = worker.draw_noise(torch.arange(12).view(3, 4), torch.tensor([0, 5, 9]), 6)
    assert noise.shape == (6, 3, 4, worker.head.noise_size)
    for mine, theirs in zip(worker.act(observation, noise[0]), algorithm.actor.act(observation, noise[0]), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(InvalidInput, match="another cohort"):
        PPO.make_actor(algorithm.cohort, gymnasium.spaces.Box(-1, 1, (5,)), ACTIONS[kind]).load_state(worker.state())


def test_an_evaluator_needs_only_two_groups_of_a_checkpoint() -> None:
    algorithm = trained("box")
    cohort = CohortConfig("ppo", (MemberConfig("x", 0),), {"hidden_sizes": (8, 9)})
    evaluator = PPO.make_actor(cohort, OBSERVATION, ACTIONS["box"])
    state = algorithm.member_state(2)
    evaluator.load_member_state(0, {group: state[group] for group in ("actor", "normalizer")})
    observation = torch.randn(3, 4, 2, 3)
    assert torch.equal(evaluator.greedy(observation[2:]), algorithm.actor.greedy(observation)[2:])
    with pytest.raises(InvalidInput, match="observation_mean"):
        evaluator.load_member_state(0, {"actor": state["actor"]})


def test_noise_belongs_to_the_agents_own_step() -> None:
    actor = trained("box").actor
    key = torch.arange(12).view(3, 4)
    long = actor.draw_noise(key, torch.tensor([0, 10, 0]), 8)
    late = actor.draw_noise(key, torch.tensor([3, 13, 3]), 5)
    assert torch.equal(long[3:], late)
    assert long.unique().numel() == long.numel()


def test_snapshots_do_not_follow_the_learner() -> None:
    algorithm = trained("discrete")
    snapshot, observation = algorithm.actor.member(1), torch.randn(1, 4, 2, 3)
    before = snapshot.greedy(observation)
    algorithm.actor.network.weights[0].neg_()
    assert torch.equal(snapshot.greedy(observation), before)
