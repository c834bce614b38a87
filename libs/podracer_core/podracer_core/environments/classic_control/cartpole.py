"""CartPole-v1, batched in torch.

Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult Learning
Control Problems", with the numbers and the Euler steps of Gymnasium's `CartPoleEnv`. States are
float64 as they are there: the upright pole is unstable, and a rounding error of float32 would grow
a millionfold in 200 steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from podracer_core.environments.info import CART_POLE
from podracer_core.environments.spaces import spaces_of
from podracer_core.environments.torch_environment import State, TorchEnvironment
from podracer_core.random_numbers import uniform

_GRAVITY = 9.8  # m/s²
_CART_MASS = 1.0  # kg
_POLE_MASS = 0.1  # kg
_TOTAL_MASS = _CART_MASS + _POLE_MASS
_HALF_LENGTH = 0.5  # m, of the pole
_FORCE = 10.0  # N
_TIME_STEP = 0.02  # s
_POSITION_LIMIT = 2.4  # m
_ANGLE_LIMIT = 12 * 2 * math.pi / 360  # rad
_INITIAL_RANGE = 0.05

_POLE_RATIO = _POLE_MASS * _HALF_LENGTH / _TOTAL_MASS


class CartPole(TorchEnvironment):
    """Push a cart left (0) or right (1) so that the pole on it stays up.

    State "physics" float64 [4, N] and observation float32 [N, 4]: cart position, cart velocity,
    pole angle, pole angular velocity. Reward 1 a step, or with `sutton_barto_reward` -1 for falling
    and 0 otherwise."""

    graph_safe = True
    can_diverge = False

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = CART_POLE.max_episode_steps,
        sutton_barto_reward: bool = False,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(CART_POLE), max_episode_steps)
        self._sutton_barto_reward = sutton_barto_reward
        self._push_left = torch.tensor(
            -_FORCE / _TOTAL_MASS, dtype=torch.float64, device=self.device
        )
        self._inertia = torch.tensor(
            _HALF_LENGTH * 4.0 / 3.0, dtype=torch.float64, device=self.device
        )
        self._one = torch.ones(num_envs, device=self.device)
        self._variables = torch.arange(4, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """All four variables uniform in ±0.05."""
        physics = uniform(key, self._variables).double()
        return {"physics": physics.mul_(2 * _INITIAL_RANGE).sub_(_INITIAL_RANGE)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One Euler step of Florian 2007, "Correct equations for the dynamics of the cart-pole
        system", eq. 23 and 24 without friction, as in Gymnasium."""
        position, velocity, angle, angular_velocity = state["physics"].unbind()
        cosine, sine = angle.cos(), angle.sin()
        force = torch.add(self._push_left, action, alpha=2 * _FORCE / _TOTAL_MASS)
        # Both equations share (force + m l ω² sin θ) / (M + m).
        push = force.addcmul_(angular_velocity.square(), sine, value=_POLE_RATIO)
        inertia = self._inertia.addcmul(
            cosine, cosine, value=-_HALF_LENGTH * _POLE_MASS / _TOTAL_MASS
        )
        angular_acceleration = sine.mul_(_GRAVITY).addcmul_(cosine, push, value=-1).div_(inertia)
        acceleration = push.addcmul_(angular_acceleration, cosine, value=-_POLE_RATIO)
        position.add_(velocity, alpha=_TIME_STEP)
        angle.add_(angular_velocity, alpha=_TIME_STEP)
        velocity.add_(acceleration, alpha=_TIME_STEP)
        angular_velocity.add_(angular_acceleration, alpha=_TIME_STEP)
        terminated = (position.abs() > _POSITION_LIMIT).logical_or_(angle.abs() > _ANGLE_LIMIT)
        return state, -terminated.float() if self._sutton_barto_reward else self._one, terminated

    def observe(self, state: State, out: Tensor) -> None:
        """The state itself, in float32."""
        out.copy_(state["physics"].t())
