"""HalfCheetah, Hopper, Walker2d and Swimmer (v5), which move in a plane: Gymnasium's models, views
and rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco_info import (
    HalfCheetahArguments,
    HopperArguments,
    SwimmerArguments,
    Walker2dArguments,
)

_MAX_OBSERVED_SPEED = 10.0


class HalfCheetah(MuJoCoEnvironment):
    """Run along x as fast as possible; it never ends by itself.

    Wawrzyński 2009, "A Cat-Like Robot Real-Time Learning to Run". Observation float32 [N, 17]:
    positions (x left out) and velocities. Action [N, 6]: torques of the hinges. Reward: forward
    velocity minus 0.1 · Σ action²."""

    arguments_type = HalfCheetahArguments
    arguments: HalfCheetahArguments

    def set_up(self) -> Sequence[Tensor]:
        return self.positions(1, self.arguments), self.qvel

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities about rest."""
        return self.noisy_state(key, self.arguments.reset_noise_scale, normal_velocity=True)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward reward minus control cost."""
        reward = velocity.mul_(self.arguments.forward_reward_weight)
        return reward.sub_(
            self.ctrl.square().sum(1), alpha=self.arguments.ctrl_cost_weight
        ), self.never


class Swimmer(MuJoCoEnvironment):
    """Three links swim along x through a viscous fluid; it never ends by itself.

    Coulom 2002, "Reinforcement Learning Using Neural Networks, with Applications to Motor Control".
    Observation float32 [N, 8]: positions (x and y left out) and velocities. Action [N, 2]: torques
    of the hinges. Reward: forward velocity minus 0.0001 · Σ action²."""

    arguments_type = SwimmerArguments
    arguments: SwimmerArguments

    def set_up(self) -> Sequence[Tensor]:
        return self.positions(2, self.arguments), self.qvel

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about rest."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward reward minus control cost."""
        reward = velocity.mul_(self.arguments.forward_reward_weight)
        return reward.sub_(
            self.ctrl.square().sum(1), alpha=self.arguments.ctrl_cost_weight
        ), self.never


class Hopper(MuJoCoEnvironment):
    """Hop along x on one leg without falling.

    Erez, Tassa and Todorov 2011, "Infinite-Horizon Model Predictive Control for Periodic Tasks with
    Contacts". Observation float32 [N, 11]: positions (x left out) and velocities within ±10. Action
    [N, 3]: torques of the hinges. Reward: forward velocity, plus 1 while healthy, minus 0.001 · Σ
    action². It ends when unhealthy: height or angle of the torso, or anything but x and height, out
    of its range."""

    arguments_type = HopperArguments
    arguments: HopperArguments

    def set_up(self) -> Sequence[Tensor]:
        asked = self.arguments
        # Every coordinate's range, x aside: height and angle have their own, and the angle both.
        lows, highs = (
            [
                asked.healthy_z_range[side],
                *[asked.healthy_state_range[side]] * (self.qpos.shape[1] + self.qvel.shape[1] - 2),
            ]
            for side in (0, 1)
        )
        low, high = asked.healthy_angle_range
        lows[1], highs[1] = max(lows[1], low), min(highs[1], high)
        self._lows, self._highs = (
            torch.tensor(side, device=self.device, dtype=self.physics.dtype)
            for side in (lows, highs)
        )
        return self.positions(1, self.arguments), self.qvel

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about the model's own state."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """Positions, and velocities within ±10."""
        _observe_slowly(self.observed, out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        state = torch.cat([self.qpos[:, 1:], self.qvel], 1)
        healthy = (state > self._lows).logical_and_(state < self._highs).all(1)
        return self.walked(velocity, healthy, self.arguments)


class Walker2d(MuJoCoEnvironment):
    """Walk along x on two legs without falling.

    Observation float32 [N, 17]: positions (x left out) and velocities within ±10. Action [N, 6]:
    torques of the hinges. Reward: forward velocity, plus 1 while healthy, minus 0.001 · Σ action².
    It ends when unhealthy: height or angle of the torso out of its range."""

    arguments_type = Walker2dArguments
    arguments: Walker2dArguments

    def set_up(self) -> Sequence[Tensor]:
        ranges = [self.arguments.healthy_z_range, self.arguments.healthy_angle_range]
        self._lows, self._highs = torch.tensor(
            ranges, device=self.device, dtype=self.physics.dtype
        ).unbind(1)
        self._height_and_angle = self.qpos[:, 1:3]
        return self.positions(1, self.arguments), self.qvel

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about the model's own state."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """Positions, and velocities within ±10."""
        _observe_slowly(self.observed, out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        state = self._height_and_angle
        healthy = (state > self._lows).logical_and_(state < self._highs).all(1)
        return self.walked(velocity, healthy, self.arguments)


def _observe_slowly(observed: Sequence[Tensor], out: Tensor) -> None:
    positions, speeds = observed
    torch.cat([positions, speeds.clamp(-_MAX_OBSERVED_SPEED, _MAX_OBSERVED_SPEED)], 1, out=out)
