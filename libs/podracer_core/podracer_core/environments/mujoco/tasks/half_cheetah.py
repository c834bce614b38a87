"""HalfCheetah-v5: Gymnasium's model, observation and reward.

Wawrzyński 2009, "A Cat-Like Robot Real-Time Learning to Run".
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import Engine, open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment

__all__ = ["HalfCheetah"]


class HalfCheetah(MuJoCoEnvironment):
    """Run along x as fast as possible, in a plane; it never ends by itself.

    Observation float32 [N, 17]: positions (x left out) and velocities. Action [N, 6]: torques of the hinges.
    Reward: forward velocity minus 0.1 · Σ action².
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "half_cheetah.xml",
        frame_skip: int = 5,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        engine: Engine = "auto",
    ) -> None:
        physics = open_physics(engine, xml_file, num_envs, device)
        skipped = 1 if exclude_current_positions_from_observation else 0
        size = physics.model.nq - skipped + physics.model.nv
        super().__init__(physics, frame_skip, max_episode_steps, size)
        self._observed = [self.qpos[:, skipped:], self.qvel]
        self._forward_reward_weight = forward_reward_weight
        self._ctrl_cost_weight = ctrl_cost_weight
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities about rest."""
        return self.noisy_state(key, self._reset_noise_scale, normal_velocity=True)

    def observe(self, out: Tensor) -> None:
        """Positions and velocities."""
        torch.cat(self._observed, 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward reward minus control cost."""
        cost = self.ctrl.square().sum(1)
        return velocity.mul_(self._forward_reward_weight).sub_(cost, alpha=self._ctrl_cost_weight), self.never
