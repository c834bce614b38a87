"""The torch environments against Gymnasium's own, step by step, from the same states under the same actions."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.environments.cartpole import CartPole
from podracer_core.environments.pendulum import Pendulum
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.environments.vec_environment import VecEnvironment

STEPS = 200
NUM_ENVS = 16


def _copy_states(environment: VecEnvironment, references: list[gymnasium.Env], rows: list[int]) -> None:
    """Put the reference's state into the batch, for the environments `rows`."""
    state = environment.state()
    for row in rows:
        state["state.physics"][row] = torch.as_tensor(np.asarray(references[row].unwrapped.state))
        state["elapsed"][row] = 0
    environment.load_state(state)


def _compare(environment: VecEnvironment, environment_id: str, actions: np.ndarray, limit: int | None = None) -> int:
    """Step both for `len(actions)` steps and return how many episodes ended."""
    references = [gymnasium.make(environment_id, max_episode_steps=limit) for _ in range(environment.num_envs)]
    environment.reset(torch.arange(environment.num_envs))
    for index, reference in enumerate(references):
        reference.reset(seed=1000 + index)
    _copy_states(environment, references, list(range(environment.num_envs)))
    ended = 0
    for action in actions:
        step = environment.step(torch.as_tensor(action))
        finished = []
        for index, reference in enumerate(references):
            observation, reward, terminated, truncated, _ = reference.step(action[index])
            np.testing.assert_allclose(step.final_observation[index].numpy(), observation, atol=1e-5, rtol=0)
            np.testing.assert_allclose(step.reward[index].item(), reward, atol=1e-5, rtol=1e-6)
            assert step.terminated[index].item() == terminated
            assert step.truncated[index].item() == truncated
            if terminated or truncated:
                reference.reset()
                finished.append(index)
            else:
                assert torch.equal(step.observation[index], step.final_observation[index])
        ended += len(finished)
        if finished:
            _copy_states(environment, references, finished)
    return ended


def test_cartpole_random_actions_with_terminations() -> None:
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, NUM_ENVS))
    assert _compare(CartPole(NUM_ENVS), "CartPole-v1", actions) > NUM_ENVS


def test_cartpole_stays_equal_through_an_episode_of_200_balanced_steps() -> None:
    """Open loop, the difference would grow like exp(3.1 t): this fails in float32."""
    reference = gymnasium.make("CartPole-v1")
    observation, _ = reference.reset(seed=3)
    environment = CartPole(1)
    environment.reset(torch.zeros(1, dtype=torch.int64))
    _copy_states(environment, [reference], [0])
    for _ in range(STEPS):
        action = int(observation[2] + 0.5 * observation[3] > 0)
        observation, _, terminated, _, _ = reference.step(action)
        step = environment.step(torch.tensor([action]))
        assert not terminated
        np.testing.assert_allclose(step.final_observation[0].numpy(), observation, atol=1e-5, rtol=0)


def test_cartpole_time_limit() -> None:
    actions = np.random.default_rng(0).integers(0, 2, (40, NUM_ENVS))
    assert _compare(CartPole(NUM_ENVS, max_episode_steps=9), "CartPole-v1", actions, limit=9) >= 4 * NUM_ENVS


def test_cartpole_sutton_barto_reward() -> None:
    environment = CartPole(4, sutton_barto_reward=True)
    environment.reset(torch.arange(4))
    for _ in range(30):
        step = environment.step(torch.ones(4, dtype=torch.int64))
        assert torch.equal(step.reward, -step.terminated.float())


def test_pendulum_random_actions_through_a_whole_episode() -> None:
    # Beyond ±2 the torque is clipped.
    actions = np.random.default_rng(0).normal(scale=1.5, size=(STEPS, NUM_ENVS, 1)).astype(np.float32)
    assert _compare(Pendulum(NUM_ENVS), "Pendulum-v1", actions) == NUM_ENVS


@pytest.mark.parametrize(
    ("environment", "environment_id"), [(CartPole(1), "CartPole-v1"), (Pendulum(1), "Pendulum-v1")]
)
def test_spaces_and_limits_are_gymnasiums(environment: VecEnvironment, environment_id: str) -> None:
    reference = gymnasium.make(environment_id)
    assert environment.observation_space == reference.observation_space
    assert environment.action_space == reference.action_space
    assert reference.spec is not None
    assert environment.max_episode_steps == reference.spec.max_episode_steps
    assert from_gymnasium(environment.action_space) == from_gymnasium(reference.action_space)
