"""What every environment written in torch promises, shown on ours and on one made for the test."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core.environments import (
    Acrobot,
    CartPole,
    EpisodeStarts,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    PointChasing,
    PointChasingDiscrete,
    State,
    Step,
    TorchEnvironment,
    allocate_step,
)
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key, uniform


class Countdown(TorchEnvironment):
    """Starts at 1 … 3 by chance, loses 1 a step, ends at 0; the action is added to the reward."""

    def __init__(
        self, num_envs: int, device: str = "cpu", max_episode_steps: int | None = None
    ) -> None:
        box = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        super().__init__(num_envs, device, box, box, max_episode_steps)

    def initial_state(self, key: Tensor) -> State:
        return {"left": uniform(key, 0).mul(3).floor() + 1}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        left = state["left"] - 1
        return {"left": left}, left + action[:, 0], left == 0

    def observe(self, state: State, out: Tensor) -> None:
        out[:, 0] = state["left"]


BUILT_IN: list[Callable[..., TorchEnvironment]] = [
    *(
        CartPole,
        Pendulum,
        Acrobot,
        MountainCar,
        MountainCarContinuous,
        PointChasing,
        PointChasingDiscrete,
    ),
    functools.partial(Acrobot, torque_noise_max=0.5),
    functools.partial(PointChasingDiscrete, dimensions=3, factored=True),
]
ENVIRONMENTS = [*BUILT_IN, Countdown]


def _actions(environment: TorchEnvironment, steps: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, environment.num_envs, *environment.action_space.shape)
    match environment.action_space:
        case gymnasium.spaces.Discrete():
            return torch.randint(0, int(environment.action_space.n), shape, generator=generator)
        case gymnasium.spaces.MultiDiscrete():
            return torch.randint(0, 3, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _values(step: Step) -> list[Tensor]:
    return [
        getattr(step, field.name).clone() for field in fields(step) if field.name != "action_mask"
    ]


def _run(environment: TorchEnvironment, actions: Tensor) -> list[list[Tensor]]:
    return [_values(environment.step(action)) for action in actions]


def _equal(one: list[list[Tensor]], other: list[list[Tensor]]) -> bool:
    return all(
        torch.equal(a, b)
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("make", ENVIRONMENTS)
def test_autoreset_in_the_same_step(make):
    """Where an episode ends, the observation is the first of the next one; elsewhere it is the
    final observation."""
    environment = make(64, max_episode_steps=17)
    environment.reset(torch.arange(64))
    episode = torch.zeros(64, dtype=torch.int64)
    ended = 0
    for action in _actions(environment, 40):
        step = environment.step(action)
        done = step.terminated | step.truncated
        episode += done
        fresh = make(64)
        fresh.reset(torch.arange(64))
        first = fresh.load_state(fresh.state() | _first_states(fresh, episode))
        expected = torch.where(done[:, None], first, step.final_observation)
        assert torch.equal(step.observation, expected)
        ended += int(done.sum())
    assert ended >= 128
    assert torch.equal(environment.state()["episode"], episode)


def _first_states(environment: TorchEnvironment, episode: Tensor) -> dict[str, Tensor]:
    key = derive_key(derive_key(torch.arange(environment.num_envs)), episode)
    return {
        f"state.{name}": value.movedim(-1, 0)
        for name, value in environment.initial_state(key).items()
    }


@pytest.mark.parametrize("make", ENVIRONMENTS)
def test_the_masked_restart_of_a_gpu_equals_the_listed_one_of_a_cpu(make):
    listed, masked = make(16, max_episode_steps=9), make(16, max_episode_steps=9)
    masked._starts = None
    actions = _actions(listed, 60)
    assert torch.equal(listed.reset(torch.arange(16)), masked.reset(torch.arange(16)))
    assert _equal(_run(listed, actions), _run(masked, actions))


@pytest.mark.parametrize("make", ENVIRONMENTS)
def test_nothing_waits_for_the_device(make):
    """Tensors on the meta device have no values: reading one would raise."""
    environment = make(4, device="meta")
    environment.reset(torch.zeros(4, dtype=torch.int64, device="meta"))
    action = _actions(environment, 1)[0].to("meta")
    before = dict(environment._state)
    step = environment.step(action)
    assert step.observation.device.type == "meta"
    assert all(environment._state[name] is value for name, value in before.items()), (
        "a graph keeps the old tensor"
    )


def test_both_ends_are_told_apart():
    """Starts of 1, 2 and 3 with a limit of 2: terminated, both at once, truncated."""
    environment = Countdown(3, max_episode_steps=2)
    environment.reset(torch.zeros(3, dtype=torch.int64))
    environment.load_state(environment.state() | {"state.left": torch.tensor([1.0, 2.0, 3.0])})
    first = environment.step(torch.zeros(3, 1))
    assert first.terminated.tolist() == [True, False, False]
    assert first.truncated.tolist() == [False, False, False]
    assert first.final_observation[:, 0].tolist() == [0, 1, 2]
    second = environment.step(torch.zeros(3, 1))
    assert second.terminated.tolist()[1:] == [True, False]
    assert second.truncated.tolist() == [False, True, True]
    assert second.final_observation[1:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("masked", [False, True])
def test_a_broken_world_is_set_aside_and_starts_anew(masked):
    environment = Pendulum(4)
    if masked:
        environment._starts = None
    environment.reset(torch.arange(4))
    action = torch.zeros(4, 1)
    action[2] = torch.nan
    step = environment.step(action)
    assert step.valid.tolist() == [True, True, False, True]
    assert step.truncated.tolist() == [False, False, True, False]
    assert not step.terminated.any()
    assert step.reward[2] == 0
    assert (step.final_observation[2] == 0).all()
    assert step.observation.isfinite().all()
    assert environment.state()["episode"].tolist() == [0, 0, 1, 0]
    step = environment.step(torch.zeros(4, 1))
    assert step.valid.all()
    assert step.reward.isfinite().all()


def test_a_broken_world_that_shows_whole_numbers_is_set_aside():
    environment = Countdown(3)
    environment.observation_space, environment._starts = (
        gymnasium.spaces.Box(0, 255, (1,), np.uint8),
        None,
    )
    environment.reset(torch.arange(3))
    step = environment.step(
        torch.tensor([[0.0], [torch.nan], [0.0]]), out=allocate_step(environment)
    )
    assert step.valid.tolist() == [True, False, True]
    assert step.final_observation.dtype == torch.uint8
    assert step.final_observation[1] == 0


def test_first_states_are_spread_as_in_gymnasium():
    cartpole = CartPole(4000)
    observation = cartpole.reset(torch.arange(4000))
    assert -0.05 <= observation.min() < -0.0499
    assert 0.0499 < observation.max() < 0.05
    assert observation.mean(0).abs().max() < 0.002
    pendulum = Pendulum(4000)
    pendulum.reset(torch.arange(4000))
    physics = pendulum.state()["state.physics"]
    assert (physics.abs().amax(0) - torch.tensor([torch.pi, 1.0])).abs().max() < 0.01
    assert physics.mean(0).abs().max() < 0.12
    assert torch.corrcoef(physics.t())[0, 1].abs() < 0.06


def test_the_other_first_states():
    seeds = torch.arange(4000)
    acrobot = Acrobot(4000)
    acrobot.reset(seeds)
    physics = acrobot.state()["state.physics"]
    assert 0.0999 < physics.abs().max() <= 0.1
    assert physics.mean(0).abs().max() < 0.004
    for car in (MountainCar(4000), MountainCarContinuous(4000)):
        position, velocity = car.reset(seeds).unbind(1)
        assert -0.6 <= position.min() < -0.5999
        assert -0.4001 < position.max() <= -0.4
        assert (position.mean() + 0.5).abs() < 0.004
        assert (velocity == 0).all()
    target, target_velocity, chaser, chaser_velocity = (
        PointChasing(4000).reset(seeds).view(4000, 4, 2).unbind(1)
    )
    assert (target_velocity == 0).all()
    assert (chaser_velocity == 0).all()
    both = torch.cat([target, chaser + 8], 1)
    assert both.mean(0).abs().max() < 0.06
    assert (torch.cov(both.t()) - torch.eye(4)).abs().max() < 0.08


def test_episodes_start_differently():
    """The ring of prepared starts must neither repeat nor skip one, however many episodes end in
    between."""
    environment = Countdown(3, max_episode_steps=1)
    environment.reset(torch.arange(3))
    steps = 3 * EpisodeStarts.DEPTH + 1
    key = derive_key(torch.arange(3))
    for episode in range(1, steps):
        step = environment.step(torch.zeros(3, 1))
        expected = environment.initial_state(derive_key(key, episode))["left"]
        assert torch.equal(step.observation[:, 0], expected)


@pytest.mark.parametrize("make", ENVIRONMENTS)
def test_wrong_use_is_named(make):
    with pytest.raises(InvalidInput, match="num_envs"):
        make(0)
    environment = make(3)
    with pytest.raises(InvalidInput, match="come before"):
        environment.step(_actions(environment, 1)[0])
    with pytest.raises(InvalidInput, match=r"shape \[3\], not \[2\]"):
        environment.reset(torch.arange(2))
    environment.reset(torch.arange(3))
    state = environment.state()
    with pytest.raises(InvalidInput, match=r"\[3\], not torch.int64 \[2\]"):
        environment.load_state(state | {"episode": torch.zeros(2, dtype=torch.int64)})
    state.pop("elapsed")
    with pytest.raises(InvalidInput, match="not nothing"):
        environment.load_state(state)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("make", BUILT_IN)
def test_a_captured_step_replays_like_the_cpu(make):
    cpu, gpu = make(64, max_episode_steps=9), make(64, device="cuda", max_episode_steps=9)
    actions = _actions(cpu, 50)
    gpu.reset(torch.arange(64, device="cuda"))
    action = actions[0].cuda()
    gpu.step(action)
    gpu.reset(torch.arange(64, device="cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = gpu.step(action)
    gpu.reset(torch.arange(64, device="cuda"))
    cpu.reset(torch.arange(64))
    for row in actions:
        action.copy_(row)
        graph.replay()
        for found, expected in zip(_values(step), _values(cpu.step(row)), strict=True):
            torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
