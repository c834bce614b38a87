"""MountainCar-v0 and MountainCarContinuous-v0, batched in torch.

Moore 1990, "Efficient Memory-based Learning for Robot Control", with the numbers and the
semi-implicit Euler steps of Gymnasium's `MountainCarEnv` and `Continuous_MountainCarEnv`. The state
of the first is float64 and that of the second is rounded to float32 after every step, as they are
there."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.info import MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS
from podracer_core.environments.spaces import spaces_of
from podracer_core.environments.torch_environment import State, TorchEnvironment
from podracer_core.random_numbers import uniform

_MIN_POSITION = -1.2
_MAX_POSITION = 0.6
_MAX_SPEED = 0.07  # a step
_FORCE = 0.001
_POWER = 0.0015  # of the continuous engine
_GRAVITY = 0.0025
_GOAL = 0.5
_CONTINUOUS_GOAL = 0.45
_START = (-0.6, -0.4)


class MountainCar(TorchEnvironment):
    """Drive a car out of a valley with an engine too weak for the slope: push left (0), not at all
    (1) or right (2).

    State "physics" float64 [2, N] and observation float32 [N, 2]: position in -1.2 … 0.6 and
    velocity in ±0.07. Reward -1 a step, until the car stands at 0.5 or beyond with a velocity of at
    least `goal_velocity`."""

    graph_safe = True
    can_diverge = False

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = MOUNTAIN_CAR.max_episode_steps,
        goal_velocity: float = 0.0,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(MOUNTAIN_CAR), max_episode_steps)
        self._goal_velocity = goal_velocity
        self._coast = torch.tensor(-_FORCE, dtype=torch.float64, device=self.device)
        self._minus_one = torch.full((num_envs,), -1.0, device=self.device)

    def initial_state(self, key: Tensor) -> State:
        """Standing still, at a position uniform in -0.6 … -0.4."""
        return {"physics": _start(key, torch.float64)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """v += (action - 1) F - g cos 3x; x += v, both limited; the wall on the left takes all
        speed."""
        position = state["physics"][0]
        slope = position.mul(3).cos_()
        push = torch.add(self._coast, action, alpha=_FORCE).sub_(slope, alpha=_GRAVITY)
        terminated = _drive(state["physics"], push, _GOAL, self._goal_velocity)
        return state, self._minus_one, terminated

    def observe(self, state: State, out: Tensor) -> None:
        """The state itself, in float32."""
        out.copy_(state["physics"].t())


class MountainCarContinuous(TorchEnvironment):
    """The same valley with a stronger engine that burns fuel; action [N, 1]: the push, in ±1.

    State "physics" float32 [2, N] and observation float32 [N, 2]: position in -1.2 … 0.6 and
    velocity in ±0.07. Reward -0.1 action² a step, and 100 for standing at 0.45 or beyond with a
    velocity of at least `goal_velocity`, which ends the episode. An action outside ±1 is clipped,
    and costs what the clipped one does; Gymnasium clips it too, but charges for the one that it was
    given."""

    graph_safe = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = MOUNTAIN_CAR_CONTINUOUS.max_episode_steps,
        goal_velocity: float = 0.0,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(MOUNTAIN_CAR_CONTINUOUS), max_episode_steps)
        self._goal_velocity = goal_velocity

    def initial_state(self, key: Tensor) -> State:
        """Standing still, at a position uniform in -0.6 … -0.4."""
        return {"physics": _start(key, torch.float32)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """v += power action - g cos 3x; x += v, both limited; the wall on the left takes all
        speed."""
        force = action[:, 0].clamp(-1.0, 1.0)
        # The cosine alone is float64 there.
        slope = state["physics"][0].mul(3).double().cos_().mul_(_GRAVITY).float()
        terminated = _drive(
            state["physics"], force.mul(_POWER).sub_(slope), _CONTINUOUS_GOAL, self._goal_velocity
        )
        reward = force.square_().mul_(-0.1).add_(terminated, alpha=100.0)
        return state, reward, terminated

    def observe(self, state: State, out: Tensor) -> None:
        """The state itself."""
        out.copy_(state["physics"].t())


def _start(key: Tensor, dtype: torch.dtype) -> Tensor:
    """Positions and velocities [2, K] of cars that begin."""
    physics = torch.zeros(2, key.shape[0], dtype=dtype, device=key.device)
    low, high = _START
    physics[0] = uniform(key, 0).to(dtype).mul_(high - low).add_(low)
    return physics


def _drive(physics: Tensor, push: Tensor, goal: float, goal_velocity: float) -> Tensor:
    """Add `push` [N] to the velocities in `physics` [2, N], and move; returns which cars have
    arrived, bool [N]."""
    position, velocity = physics.unbind()
    velocity.add_(push).clamp_(-_MAX_SPEED, _MAX_SPEED)
    position.add_(velocity).clamp_(_MIN_POSITION, _MAX_POSITION)
    velocity.masked_fill_((position == _MIN_POSITION).logical_and_(velocity < 0), 0)
    return (position >= goal).logical_and_(velocity >= goal_velocity)
