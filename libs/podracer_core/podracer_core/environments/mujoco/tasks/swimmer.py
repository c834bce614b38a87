"""Swimmer-v5: Gymnasium's model, observation and reward.

Coulom 2002, "Reinforcement Learning Using Neural Networks, with Applications to Motor Control".
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment

__all__ = ["Swimmer"]


class Swimmer(MuJoCoEnvironment):
    """Three links swim along x through a viscous fluid, in a plane; it never ends by itself.

    Observation float32 [N, 8]: positions (x and y left out) and velocities. Action [N, 2]: torques of the hinges.
    Reward: forward velocity minus 0.0001 · Σ action².
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "swimmer.xml",
        frame_skip: int = 4,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-4,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        physics = open_physics("mujoco", xml_file, num_envs, device)
        skipped = 2 if exclude_current_positions_from_observation else 0
        size = physics.model.nq - skipped + physics.model.nv
        super().__init__(physics, frame_skip, max_episode_steps, size)
        self._observed = [self.qpos[:, skipped:], self.qvel]
        self._forward_reward_weight = forward_reward_weight
        self._ctrl_cost_weight = ctrl_cost_weight
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about rest."""
        return self.noisy_state(key, self._reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """Positions and velocities."""
        torch.cat(self._observed, 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward reward minus control cost."""
        cost = self.ctrl.square().sum(1)
        return velocity.mul_(self._forward_reward_weight).sub_(cost, alpha=self._ctrl_cost_weight), self.never
