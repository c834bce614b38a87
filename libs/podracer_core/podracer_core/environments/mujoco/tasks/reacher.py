"""Reacher-v5: Gymnasium's model, observation and reward."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.random_numbers import uniform

__all__ = ["Reacher"]

_POSITION_NOISE = 0.1
_VELOCITY_NOISE = 0.005
_GOAL_RADIUS = 0.2  # m


class Reacher(MuJoCoEnvironment):
    """Bring the tip of a two-link arm to a target in its plane; it never ends by itself.

    Observation float32 [N, 10]: cosines and sines of both angles, position of the target, angular velocities, and the
    way from the target to the tip in the plane. Action [N, 2]: torques of the hinges. Reward: minus the distance of
    tip and target, minus Σ action².
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 50,
        *,
        xml_file: str = "reacher.xml",
        frame_skip: int = 2,
        reward_dist_weight: float = 1.0,
        reward_control_weight: float = 1.0,
    ) -> None:
        physics = open_physics("mujoco", xml_file, num_envs, device, fields=("xpos",))
        super().__init__(physics, frame_skip, max_episode_steps, observation_size=10)
        self._angles, self._goal = self.qpos[:, :2], self.qpos[:, 2:]
        self._angular_velocities = self.qvel[:, :2]
        bodies = physics.field("xpos")
        self._tip, self._target = (bodies[:, physics.model.body(name).id] for name in ("fingertip", "target"))
        self._reward_dist_weight = reward_dist_weight
        self._reward_control_weight = reward_control_weight

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform angles and velocities, and a target at rest, uniform in a disc."""
        qpos, _ = self.noisy_state(key, _POSITION_NOISE)
        _, qvel = self.noisy_state(key, _VELOCITY_NOISE)
        free = qpos.shape[1] + qvel.shape[1]  # the first counter that the noise leaves
        radius = uniform(key, free).to(qpos.dtype).sqrt_().mul_(_GOAL_RADIUS)
        angle = uniform(key, free + 1).to(qpos.dtype).mul_(2 * math.pi)
        torch.stack([radius * angle.cos(), radius * angle.sin()], 1, out=qpos[:, -2:])
        qvel[:, -2:] = 0
        return qpos, qvel

    def observe(self, out: Tensor) -> None:
        """Cosines, sines, target, velocities, way."""
        way = (self._tip - self._target)[:, :2]
        torch.cat([self._angles.cos(), self._angles.sin(), self._goal, self._angular_velocities, way], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Minus distance and control cost."""
        distance = torch.linalg.vector_norm(self._tip - self._target, dim=1)
        cost = self.ctrl.square().sum(1)
        return distance.mul_(-self._reward_dist_weight).sub_(cost, alpha=self._reward_control_weight), self.never
