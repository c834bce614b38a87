"""PointChasing by hand, and against the same task written plainly in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.environments import PointChasing, PointChasingDiscrete, TorchEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key, uniform


def _placed(environment: TorchEnvironment, physics: list[list[float]]) -> TorchEnvironment:
    """`environment` of one, with `physics` = [target, its velocity, chaser, its velocity]."""
    environment.reset(torch.zeros(1, dtype=torch.int64))
    environment.load_state(
        environment.state() | {"state.physics": torch.tensor([physics], dtype=torch.float64)}
    )
    return environment


def _drift(environment: TorchEnvironment, dimensions: int) -> np.ndarray:
    """What the target will add to its velocity in the next step."""
    state = environment.state()
    counter = state["state.target_count"] + torch.arange(dimensions)
    return uniform(state["state.target_key"], counter).numpy().astype(np.float64)


def test_one_step_by_hand():
    """Action (0.6, 0.8) has the length 1 and is taken as it is.

    chaser velocity   0.75 (4, -4) + (0.6, 0.8) = (3.6, -2.2), position (0, 0) + 0.01 (3.6, -2.2) =
                      (0.036, -0.022)
    target velocity   0.5 (2, 0) + u = (1 + u0, u1),           position (6, 8) + 0.01 (1 + u0, u1)
    reward            10 - distance - 0.02
    """
    environment = _placed(PointChasing(1), [[6, 8], [2, 0], [0, 0], [4, -4]])
    first, second = _drift(environment, 2)
    step = environment.step(torch.tensor([[0.6, 0.8]]))
    expected = [6.01 + 0.01 * first, 8 + 0.01 * second, 1 + first, second, 0.036, -0.022, 3.6, -2.2]
    np.testing.assert_allclose(step.final_observation[0].numpy(), expected, atol=1e-6)
    distance = np.hypot(expected[0] - 0.036, expected[1] + 0.022)
    np.testing.assert_allclose(step.reward.item(), 10 - distance - 0.02, atol=1e-6)
    assert not step.terminated


@pytest.mark.parametrize(
    ("action", "acceleration", "effort"),
    [
        ([0.0, 0.0], [0.0, 0.0], 1.0),  # the cost of an action shorter than 1 is that of 1
        ([0.3, -0.4], [0.3, -0.4], 1.0),
        ([1.0, 1.0], [2**-0.5, 2**-0.5], 2**0.5),
        ([-30.0, 0.75], [-0.8, 0.6], 1.25),  # clipped to (-1, 0.75) first
    ],
)
def test_the_length_of_an_action(action, acceleration, effort):
    environment = _placed(PointChasing(1), [[6, 8], [0, 0], [0, 0], [0, 0]])
    step = environment.step(torch.tensor([action]))
    target, _, chaser, velocity = step.final_observation[0].double().view(4, 2)
    np.testing.assert_allclose(velocity.numpy(), acceleration, atol=1e-6)
    np.testing.assert_allclose(
        step.reward.item(), 10 - (target - chaser).norm().item() - 0.02 * effort, atol=2e-6
    )


@pytest.mark.parametrize(
    ("dimensions", "gap", "caught"), [(1, 1.2, False), (1, 0.9, True), (3, 1.6, True)]
)
def test_caught_when_closer_than_the_number_of_dimensions(dimensions, gap, caught):
    """In three dimensions (1.6, 1.6, 1.6) is a distance of 2.77."""
    zeros = [0.0] * dimensions
    environment = _placed(
        PointChasing(1, dimensions=dimensions), [[gap] * dimensions, zeros, zeros, zeros]
    )
    step = environment.step(torch.zeros(1, dimensions))
    assert step.terminated.item() == caught
    assert not step.truncated


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5])
def test_whole_episodes_equal_a_plain_reference(dimensions):
    """Four chasers that head for the target, with noise, until all have caught it or run out of
    time."""
    environment = PointChasing(4, dimensions=dimensions)
    seeds = torch.arange(4)
    observation = environment.reset(seeds)
    key = derive_key(derive_key(derive_key(seeds), 0), 1)
    target, target_velocity, chaser, chaser_velocity = (
        observation.double().view(4, 4, dimensions).movedim(0, 1).numpy()
    )
    rng = np.random.default_rng(0)
    running = np.ones(4, dtype=bool)
    caught = 0
    for index in range(1024):
        action = np.clip(target - chaser, -1, 1) + rng.normal(scale=0.3, size=(4, dimensions))
        step = environment.step(torch.tensor(action, dtype=torch.float32))
        action = np.clip(action.astype(np.float32).astype(np.float64), -1, 1)
        before = np.linalg.norm(target - chaser, axis=1)
        effort = np.maximum(np.linalg.norm(action, axis=1), 1)
        chaser_velocity = 0.75 * chaser_velocity + action / effort[:, None]
        drift = uniform(key[:, None], index * dimensions + torch.arange(dimensions))
        target_velocity = 0.5 * target_velocity + drift.numpy()
        chaser, target = chaser + 0.01 * chaser_velocity, target + 0.01 * target_velocity
        distance = np.linalg.norm(target - chaser, axis=1)
        expected = np.concatenate([target, target_velocity, chaser, chaser_velocity], axis=1)
        np.testing.assert_allclose(
            step.final_observation.numpy()[running], expected[running], atol=1e-5, rtol=0
        )
        reward = before - distance - 0.02 * effort
        np.testing.assert_allclose(step.reward.numpy()[running], reward[running], atol=1e-6, rtol=0)
        np.testing.assert_array_equal(
            step.terminated.numpy()[running], distance[running] < dimensions
        )
        assert bool(step.truncated.numpy()[running].all()) == (index == 1023)
        caught += int((distance[running] < dimensions).sum())
        running &= distance >= dimensions
        if not running.any():
            break
    assert caught == 4


def test_discrete_actions_are_digits_in_base_three():
    """5 = 2 + 1 * 3 + 0 * 9: the components 1, 0, -1."""
    zeros = [0.0, 0.0, 0.0]
    environment = _placed(PointChasingDiscrete(1, dimensions=3), [[9, 9, 9], zeros, zeros, zeros])
    assert environment.action_space == gymnasium.spaces.Discrete(27)
    step = environment.step(torch.tensor([5]))
    velocity = step.final_observation[0, -3:]
    torch.testing.assert_close(velocity, torch.tensor([2**-0.5, 0.0, -(2**-0.5)]))


@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_all_three_kinds_of_actions_are_one_chase(dimensions):
    choices = torch.randint(0, 3, (30, 6, dimensions), generator=torch.Generator().manual_seed(1))
    joint = (choices * 3 ** torch.arange(dimensions)).sum(-1)
    kinds: list[tuple[Callable[..., Any], torch.Tensor]] = [
        (PointChasing, choices.float() - 1),
        (PointChasingDiscrete, joint),
        (functools.partial(PointChasingDiscrete, factored=True), choices),
    ]
    found = []
    for make, actions in kinds:
        environment = make(6, dimensions=dimensions)
        environment.reset(torch.arange(6))
        steps = [environment.step(action) for action in actions]
        found.append((steps[-1].final_observation.clone(), steps[-1].reward.clone()))
    for observation, reward in found[1:]:
        assert torch.equal(observation, found[0][0])
        assert torch.equal(reward, found[0][1])


def test_many_dimensions():
    environment = PointChasingDiscrete(3, dimensions=40, factored=True)
    assert environment.observation_space.shape == (160,)
    environment.reset(torch.arange(3))
    assert environment.step(torch.zeros(3, 40, dtype=torch.int64)).valid.all()
    with pytest.raises(InvalidInput, match="13 dimensions would"):
        PointChasingDiscrete(1, dimensions=13)


@pytest.mark.parametrize("make", [PointChasing, PointChasingDiscrete])
@pytest.mark.parametrize("dimensions", [0, -1, 2.0, True, "2", 2**31])
def test_dimensions_are_a_number_to_count_with(make, dimensions):
    with pytest.raises(InvalidInput, match="a whole number"):
        make(1, dimensions=dimensions)
