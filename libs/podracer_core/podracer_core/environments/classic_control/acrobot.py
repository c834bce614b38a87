"""Acrobot-v1, batched in torch.

Sutton 1996, "Generalization in Reinforcement Learning: Successful Examples Using Sparse Coarse
Coding", with the numbers and the Runge-Kutta step of Gymnasium's `AcrobotEnv`. States are float64
as they are there: the motion is chaotic, and rounding errors of float32 would soon be seen."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from podracer_core.environments.info import ACROBOT
from podracer_core.environments.spaces import spaces_of
from podracer_core.environments.torch_environment import State, TorchEnvironment
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key, uniform

# Both links alike: 1 kg, 1 m, the centre of mass in the middle, a moment of inertia of 1 kg m².
_MASS = 1.0
_LENGTH = 1.0
_CENTRE = 0.5
_INERTIA = 1.0
_GRAVITY = 9.8  # m/s²
_MAX_SPEEDS = (4 * math.pi, 9 * math.pi)  # rad/s
_INITIAL_RANGE = 0.1

# What the equations of motion are made of.
_COUPLING = _MASS * _LENGTH * _CENTRE
_OUTER_INERTIA = _MASS * _CENTRE**2 + _INERTIA
_WHOLE_INERTIA = _MASS * _CENTRE**2 + _MASS * (_LENGTH**2 + _CENTRE**2) + 2 * _INERTIA
_OUTER_WEIGHT = _MASS * _CENTRE * _GRAVITY
_INNER_WEIGHT = (_MASS * _CENTRE + _MASS * _LENGTH) * _GRAVITY


class Acrobot(TorchEnvironment):
    """Swing the free end of a double pendulum one link's length above its axis, by a torque of -1,
    0 or 1 N m (actions 0, 1, 2) on the joint in the middle.

    State "physics" float64 [4, N]: angle of the first link (0 hangs down), angle of the second
    against the first, both within ±π, and their velocities. Observation float32 [N, 6]: cosine and
    sine of the one, of the other, and the velocities. Reward -1 a step, 0 for the last.

    book_or_nips        the equations of Sutton and Barto's book, or those of the paper, which lack
                        a term
    dt                  s a step, one Runge-Kutta step
    torque_noise_max    N m; a number uniform in ± this is added to the torque. With it the state
                        has two more parts, "noise_key" and "noise_count", int64 [N]
    """

    graph_safe = True
    can_diverge = False

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = ACROBOT.max_episode_steps,
        book_or_nips: Literal["book", "nips"] = "book",
        dt: float = 0.2,
        torque_noise_max: float = 0.0,
    ) -> None:
        if book_or_nips not in ("book", "nips"):
            raise InvalidInput(f"book_or_nips must be 'book' or 'nips', not {book_or_nips!r}")
        if not (dt > 0 and math.isfinite(dt)):
            raise InvalidInput(f"dt must be a positive number of seconds, not {dt!r}")
        if not (torque_noise_max >= 0 and math.isfinite(torque_noise_max)):
            raise InvalidInput(
                f"torque_noise_max must be a number from 0 on, not {torque_noise_max!r}"
            )
        self._book = book_or_nips == "book"
        self._dt = dt
        self._noise = torque_noise_max
        super().__init__(num_envs, device, *spaces_of(ACROBOT), max_episode_steps)
        self._first_torque = torch.tensor(-1.0, dtype=torch.float64, device=self.device)
        self._max_speeds = torch.tensor(_MAX_SPEEDS, dtype=torch.float64, device=self.device)[
            :, None
        ]
        self._variables = torch.arange(4, device=self.device)[:, None]

    def initial_state(self, key: Tensor) -> State:
        """All four variables uniform in ±0.1."""
        physics = (
            uniform(key, self._variables).double().mul_(2 * _INITIAL_RANGE).sub_(_INITIAL_RANGE)
        )
        if not self._noise:
            return {"physics": physics}
        return {
            "physics": physics,
            "noise_key": derive_key(key, 1),
            "noise_count": torch.zeros_like(key),
        }

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One classical Runge-Kutta step, then angles within ±π and velocities limited."""
        physics = state["physics"]
        torque = self._first_torque + action
        if self._noise:
            drawn = uniform(state["noise_key"], state["noise_count"])
            torque.add_(drawn.mul_(2).sub_(1), alpha=self._noise)
            state["noise_count"] += 1
        first = self._derivative(physics, torque)
        second = self._derivative(physics.add(first, alpha=self._dt / 2), torque)
        third = self._derivative(physics.add(second, alpha=self._dt / 2), torque)
        fourth = self._derivative(physics.add(third, alpha=self._dt), torque)
        slope = first.add_(second, alpha=2).add_(third, alpha=2).add_(fourth)
        physics.add_(slope, alpha=self._dt / 6)
        angles, velocities = physics.view(2, 2, -1).unbind()
        angles.sub_(angles.mul(1 / (2 * math.pi)).round_(), alpha=2 * math.pi)
        torch.clamp(velocities, -self._max_speeds, self._max_speeds, out=velocities)
        height = angles[0].cos().add_(angles.sum(0).cos_()).neg_()
        terminated = height > 1.0
        return state, terminated.float().sub_(1), terminated

    def _derivative(self, physics: Tensor, torque: Tensor) -> Tensor:
        """The time derivative [4, N] of `physics` (Sutton and Barto, section 11.3 of the first
        edition).

        With θ the angles and M = [[d1, d2], [d2, m lc² + I]] the matrix of inertia, M θ'' = (-φ1, τ
        - φ2 - …)."""
        angle, joint_angle, speed, joint_speed = physics.unbind()
        cosine, sine = joint_angle.cos(), joint_angle.sin()
        d1 = cosine.mul(2 * _COUPLING).add_(_WHOLE_INERTIA)
        d2 = cosine.mul_(_COUPLING).add_(_OUTER_INERTIA)
        phi2 = (angle + joint_angle).sin_().mul_(_OUTER_WEIGHT)
        swing = joint_speed.add(speed, alpha=2).mul_(joint_speed).mul_(sine)
        phi1 = angle.sin().mul_(_INNER_WEIGHT).add_(phi2).sub_(swing, alpha=_COUPLING)
        ratio = d2 / d1
        push = torch.addcmul(torque, ratio, phi1).sub_(phi2)
        if self._book:
            push.addcmul_(speed.square(), sine, value=-_COUPLING)
        derivative = torch.empty_like(physics)
        derivative[:2] = physics[2:]
        joint_acceleration = torch.div(
            push, ratio.mul_(d2).neg_().add_(_OUTER_INERTIA), out=derivative[3]
        )
        torch.div(d2.mul_(joint_acceleration).add_(phi1).neg_(), d1, out=derivative[2])
        return derivative

    def observe(self, state: State, out: Tensor) -> None:
        """cos θ1, sin θ1, cos θ2, sin θ2 and both velocities, in float32."""
        angles, velocities = state["physics"].view(2, 2, -1).unbind()
        out[:, 0:4:2].copy_(angles.cos().t())
        out[:, 1:4:2].copy_(angles.sin().t())
        out[:, 4:].copy_(velocities.t())
