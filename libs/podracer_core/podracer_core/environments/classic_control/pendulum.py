"""Pendulum-v1, batched in torch, with the numbers and the semi-implicit Euler steps of Gymnasium's
`PendulumEnv`.

States are float64 as they are there, so that both agree for a whole episode.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from podracer_core.environments.info import PENDULUM
from podracer_core.environments.spaces import spaces_of
from podracer_core.environments.torch_environment import State, TorchEnvironment
from podracer_core.random_numbers import uniform

_MAX_SPEED = 8.0  # rad/s
_MAX_TORQUE = 2.0  # N m
_TIME_STEP = 0.05  # s
_MASS = 1.0  # kg
_LENGTH = 1.0  # m
_INITIAL_ANGLE = math.pi  # rad
_INITIAL_SPEED = 1.0  # rad/s


class Pendulum(TorchEnvironment):
    """Swing a pendulum up and hold it there with a motor too weak to lift it directly.

    State "physics" float64 [2, N]: angle (0 is upright, not wrapped) and angular velocity.
    Observation float32 [N, 3]: its cosine, sine and the angular velocity. Action [N, 1]: torque in
    ±2 N m. Reward -(angle² + 0.1 velocity² + 0.001 torque²) of the state before the step, the angle
    taken within ±π. `g` in m/s²."""

    graph_safe = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = PENDULUM.max_episode_steps,
        g: float = 10.0,
    ) -> None:
        super().__init__(num_envs, device, *spaces_of(PENDULUM), max_episode_steps)
        self._gravity_factor = 3 * g / (2 * _LENGTH)
        self._ranges = torch.tensor(
            [[_INITIAL_ANGLE], [_INITIAL_SPEED]], dtype=torch.float64, device=self.device
        )
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._variables = torch.arange(2, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """Any angle, and an angular velocity in ±1."""
        return {
            "physics": uniform(key, self._variables).double().mul_(2).sub_(1).mul_(self._ranges)
        }

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """ω += (3g/2l sin θ + 3/ml² u) dt, limited; θ += ω dt. It never ends by itself."""
        angle, speed = state["physics"].unbind()
        torque = action[:, 0].clamp(-_MAX_TORQUE, _MAX_TORQUE)
        turns = angle.mul(1 / (2 * math.pi)).round_()
        wrapped = angle.sub(turns, alpha=2 * math.pi)
        reward = (
            wrapped.square_()
            .addcmul_(speed, speed, value=0.1)
            .add_(torque.square(), alpha=0.001)
            .neg_()
        )
        # In float32, as Gymnasium rounds it; a swinging pendulum makes a hundred times more of a
        # difference here.
        push = torque.mul(3.0 / (_MASS * _LENGTH**2))
        acceleration = angle.sin().mul_(self._gravity_factor).add_(push)
        speed.add_(acceleration, alpha=_TIME_STEP).clamp_(-_MAX_SPEED, _MAX_SPEED)
        angle.add_(speed, alpha=_TIME_STEP)
        return state, reward, self._never

    def observe(self, state: State, out: Tensor) -> None:
        """cos θ, sin θ, ω in float32."""
        angle, speed = state["physics"].unbind()
        cosine, sine, third = out.unbind(1)
        cosine.copy_(angle.cos())
        sine.copy_(angle.sin())
        third.copy_(speed)
