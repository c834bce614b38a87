"""Hopper-v5: Gymnasium's model, observation, reward and end.

Erez, Tassa and Todorov 2011, "Infinite-Horizon Model Predictive Control for Periodic Tasks with Contacts".
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import Engine, open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment

__all__ = ["Hopper"]

_MAX_OBSERVED_SPEED = 10.0


class Hopper(MuJoCoEnvironment):
    """Hop along x on one leg, in a plane, without falling.

    Observation float32 [N, 11]: positions (x left out) and velocities within ±10. Action [N, 3]: torques of the
    hinges. Reward: forward velocity, plus 1 while healthy, minus 0.001 · Σ action². It ends when unhealthy: height or
    angle of the torso, or anything but x and height, out of its range.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "hopper.xml",
        frame_skip: int = 4,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-3,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        healthy_state_range: tuple[float, float] = (-100.0, 100.0),
        healthy_z_range: tuple[float, float] = (0.7, float("inf")),
        healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
        reset_noise_scale: float = 5e-3,
        exclude_current_positions_from_observation: bool = True,
        engine: Engine = "auto",
    ) -> None:
        physics = open_physics(engine, xml_file, num_envs, device)
        skipped = 1 if exclude_current_positions_from_observation else 0
        size = physics.model.nq - skipped + physics.model.nv
        super().__init__(physics, frame_skip, max_episode_steps, size)
        self._observed_positions = self.qpos[:, skipped:]
        self._forward_reward_weight = forward_reward_weight
        self._ctrl_cost_weight = ctrl_cost_weight
        self._healthy_reward = healthy_reward
        self._terminate_when_unhealthy = terminate_when_unhealthy
        self._reset_noise_scale = reset_noise_scale
        # Every coordinate's range, x aside: height and angle have their own, and the angle both.
        lows, highs = (
            [healthy_z_range[side], *[healthy_state_range[side]] * (physics.model.nq + physics.model.nv - 2)]
            for side in (0, 1)
        )
        lows[1], highs[1] = max(lows[1], healthy_angle_range[0]), min(highs[1], healthy_angle_range[1])
        self._lows, self._highs = (
            torch.tensor(side, device=self.device, dtype=physics.dtype) for side in (lows, highs)
        )

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about the model's own state."""
        return self.noisy_state(key, self._reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """Positions, and velocities within ±10."""
        speeds = self.qvel.clamp(-_MAX_OBSERVED_SPEED, _MAX_OBSERVED_SPEED)
        torch.cat([self._observed_positions, speeds], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        state = torch.cat([self.qpos[:, 1:], self.qvel], 1)
        healthy = (state > self._lows).logical_and_(state < self._highs).all(1)
        reward = velocity.mul_(self._forward_reward_weight).add_(healthy, alpha=self._healthy_reward)
        reward.sub_(self.ctrl.square().sum(1), alpha=self._ctrl_cost_weight)
        return reward, healthy.logical_not() if self._terminate_when_unhealthy else self.never
