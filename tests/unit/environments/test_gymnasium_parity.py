"""The torch environments against Gymnasium's own, step by step, from the same states under the same
actions."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from podracer_core.environments import (
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    VecEnvironment,
    from_gymnasium,
)
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import uniform

STEPS = 200
NUM_ENVS = 16


def _copy_states(
    environment: VecEnvironment, references: list[gymnasium.Env], rows: list[int]
) -> None:
    """Put the reference's state into the batch, for the environments `rows`."""
    state = environment.state()
    for row in rows:
        state["state.physics"][row] = torch.as_tensor(np.asarray(references[row].unwrapped.state))
        state["elapsed"][row] = 0
    environment.load_state(state)


def _compare(
    environment: VecEnvironment, environment_id: str, actions: np.ndarray, limit: int | None = None
) -> int:
    """Step both for `len(actions)` steps and return how many episodes ended."""
    references = [
        gymnasium.make(environment_id, max_episode_steps=limit) for _ in range(environment.num_envs)
    ]
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
            np.testing.assert_allclose(
                step.final_observation[index].numpy(), observation, atol=1e-5, rtol=0
            )
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


def test_cartpole_random_actions_with_terminations():
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, NUM_ENVS))
    assert _compare(CartPole(NUM_ENVS), "CartPole-v1", actions) > NUM_ENVS


def test_cartpole_stays_equal_through_an_episode_of_200_balanced_steps():
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
        np.testing.assert_allclose(
            step.final_observation[0].numpy(), observation, atol=1e-5, rtol=0
        )


def test_cartpole_time_limit():
    actions = np.random.default_rng(0).integers(0, 2, (40, NUM_ENVS))
    assert (
        _compare(CartPole(NUM_ENVS, max_episode_steps=9), "CartPole-v1", actions, limit=9)
        >= 4 * NUM_ENVS
    )


def test_cartpole_sutton_barto_reward():
    environment = CartPole(4, sutton_barto_reward=True)
    environment.reset(torch.arange(4))
    for _ in range(30):
        step = environment.step(torch.ones(4, dtype=torch.int64))
        assert torch.equal(step.reward, -step.terminated.float())


def test_pendulum_random_actions_through_a_whole_episode():
    # Beyond ±2 the torque is clipped.
    actions = (
        np.random.default_rng(0).normal(scale=1.5, size=(STEPS, NUM_ENVS, 1)).astype(np.float32)
    )
    assert _compare(Pendulum(NUM_ENVS), "Pendulum-v1", actions) == NUM_ENVS


def test_acrobot_random_actions_through_a_whole_episode():
    actions = np.random.default_rng(0).integers(0, 3, (500, NUM_ENVS))
    assert _compare(Acrobot(NUM_ENVS), "Acrobot-v1", actions) >= NUM_ENVS


def test_acrobot_pumped_up_to_the_goal():
    """Where it swings fast and goes round, and where the height ends episodes."""
    references = [gymnasium.make("Acrobot-v1") for _ in range(NUM_ENVS)]
    environment = Acrobot(NUM_ENVS)
    environment.reset(torch.arange(NUM_ENVS))
    observations = [reference.reset(seed=index)[0] for index, reference in enumerate(references)]
    _copy_states(environment, references, list(range(NUM_ENVS)))
    ended = 0
    for _ in range(STEPS):
        action = [2 if observation[5] >= 0 else 0 for observation in observations]
        step = environment.step(torch.tensor(action))
        for index, reference in enumerate(references):
            observations[index], reward, terminated, _, _ = reference.step(action[index])
            np.testing.assert_allclose(
                step.final_observation[index].numpy(), observations[index], atol=1e-5, rtol=0
            )
            assert (step.reward[index].item(), step.terminated[index].item()) == (
                reward,
                terminated,
            )
            if terminated:
                observations[index], _ = reference.reset()
                _copy_states(environment, references, [index])
                ended += 1
    assert ended >= NUM_ENVS


@pytest.mark.parametrize("speed", [0.0, 25.0, -28.0])
def test_acrobots_equations_of_the_paper_and_of_the_book_and_another_time_step(speed):
    for book_or_nips, dt in (("nips", 0.2), ("book", 0.05), ("book", 0.2)):
        reference = gymnasium.make("Acrobot-v1").unwrapped
        reference.book_or_nips, reference.dt = book_or_nips, dt
        reference.reset(seed=1)
        reference.state = np.array([2.5, -3.0, speed / 3, speed])
        environment = Acrobot(1, book_or_nips=book_or_nips, dt=dt)
        environment.reset(torch.zeros(1, dtype=torch.int64))
        _copy_states(environment, [reference], [0])
        for action in (2, 2, 0, 1, 2, 0):
            observation, _, terminated, _, _ = reference.step(action)
            step = environment.step(torch.tensor([action]))
            np.testing.assert_allclose(
                step.final_observation[0].numpy(), observation, atol=1e-5, rtol=0
            )
            assert step.terminated.item() == terminated
            if terminated:
                break


def test_acrobots_torque_noise():
    """Gymnasium's is given the torques that ours should have drawn."""
    reference = gymnasium.make("Acrobot-v1").unwrapped
    reference.reset(seed=2)
    environment = Acrobot(1, torque_noise_max=0.5)
    environment.reset(torch.zeros(1, dtype=torch.int64))
    _copy_states(environment, [reference], [0])
    noises = []
    for _ in range(50):
        state = environment.state()
        noises.append(uniform(state["state.noise_key"], state["state.noise_count"]).item() - 0.5)
        reference.AVAIL_TORQUE = [torque + noises[-1] for torque in (-1.0, 0.0, 1.0)]
        observation, *_ = reference.step(2)
        step = environment.step(torch.tensor([2]))
        np.testing.assert_allclose(
            step.final_observation[0].numpy(), observation, atol=1e-5, rtol=0
        )
    assert min(noises) < -0.4
    assert max(noises) > 0.4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"book_or_nips": "paper"}, "book_or_nips must be 'book' or 'nips', not 'paper'"),
        ({"dt": 0.0}, "dt must be a positive number of seconds, not 0.0"),
        ({"torque_noise_max": -1.0}, "torque_noise_max must be a number from 0 on, not -1.0"),
    ],
)
def test_acrobots_arguments_that_cannot_be_right(arguments, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        Acrobot(1, **arguments)


def test_mountain_car_random_actions_through_a_whole_episode():
    actions = np.random.default_rng(0).integers(0, 3, (STEPS, NUM_ENVS))
    assert _compare(MountainCar(NUM_ENVS), "MountainCar-v0", actions) == NUM_ENVS


def test_mountain_car_continuous_random_actions():
    # All within ±1: beyond, Gymnasium charges for more than it lets the engine do.
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, NUM_ENVS, 1)).astype(np.float32)
    assert _compare(MountainCarContinuous(NUM_ENVS), "MountainCarContinuous-v0", actions) == 0


@pytest.mark.parametrize("goal_velocity", [0.0, 0.04])
@pytest.mark.parametrize(
    ("make", "environment_id"),
    [(MountainCar, "MountainCar-v0"), (MountainCarContinuous, "MountainCarContinuous-v0")],
)
def test_mountain_cars_from_the_wall_to_the_goal(make, environment_id, goal_velocity):
    reference = gymnasium.make(environment_id, goal_velocity=goal_velocity)
    reference.reset()
    reference.unwrapped.state = np.array([-1.1, -0.06], dtype=np.float32)
    environment = make(1, goal_velocity=goal_velocity)
    environment.reset(torch.zeros(1, dtype=torch.int64))
    _copy_states(environment, [reference], [0])
    velocity, walls = -0.06, 0
    for _ in range(STEPS):
        push = np.sign(velocity)  # the way it goes already, none at the wall
        action = (
            np.array(push + 1, dtype=np.int64)
            if make is MountainCar
            else np.array([push], dtype=np.float32)
        )
        observation, reward, terminated, _, _ = reference.step(action)
        step = environment.step(torch.as_tensor(action)[None])
        np.testing.assert_allclose(
            step.final_observation[0].numpy(), observation, atol=1e-6, rtol=0
        )
        np.testing.assert_allclose(step.reward.item(), reward, atol=1e-5, rtol=0)
        assert step.terminated.item() == terminated
        velocity = observation[1]
        walls += bool(observation[0] == np.float32(-1.2))
        if terminated:
            break
    assert walls
    assert terminated


def test_mountain_car_continuous_charges_for_the_clipped_action():
    environment = MountainCarContinuous(2)
    environment.reset(torch.zeros(2, dtype=torch.int64))
    step = environment.step(torch.tensor([[-7.0], [-1.0]]))
    assert torch.equal(step.final_observation[0], step.final_observation[1])
    torch.testing.assert_close(step.reward, torch.tensor([-0.1, -0.1]))


def test_mountain_car_time_limit():
    actions = np.random.default_rng(0).integers(0, 3, (40, NUM_ENVS))
    assert (
        _compare(MountainCar(NUM_ENVS, max_episode_steps=9), "MountainCar-v0", actions, limit=9)
        == 4 * NUM_ENVS
    )


@pytest.mark.parametrize(
    ("environment", "environment_id"),
    [
        (CartPole(1), "CartPole-v1"),
        (Pendulum(1), "Pendulum-v1"),
        (Acrobot(1), "Acrobot-v1"),
        (MountainCar(1), "MountainCar-v0"),
        (MountainCarContinuous(1), "MountainCarContinuous-v0"),
    ],
)
def test_spaces_and_limits_are_gymnasiums(environment, environment_id):
    reference = gymnasium.make(environment_id)
    assert environment.observation_space == reference.observation_space
    assert environment.action_space == reference.action_space
    assert reference.spec is not None
    assert environment.max_episode_steps == reference.spec.max_episode_steps
    assert from_gymnasium(environment.action_space) == from_gymnasium(reference.action_space)
