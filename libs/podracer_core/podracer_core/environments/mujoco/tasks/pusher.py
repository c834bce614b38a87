"""Pusher-v5: Gymnasium's model, observation and reward."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.random_numbers import uniform

__all__ = ["Pusher"]

_VELOCITY_NOISE = 0.005
_ARM_JOINTS = 7
_MIN_GOAL_DISTANCE = 0.17  # m, of the cylinder from its goal
_CANDIDATES = 32  # places for the cylinder; all are too near once in 10^13 episodes, and then the first is taken


class Pusher(MuJoCoEnvironment):
    """Push a cylinder to its goal on a table with an arm of seven joints; it never ends by itself.

    Observation float32 [N, 23]: angles and angular velocities of the arm, positions of its tip, the cylinder and the
    goal. Action [N, 7]: torques of the hinges. Reward: minus half the distance of tip and cylinder, minus that of
    cylinder and goal, minus 0.1 · Σ action².
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 100,
        *,
        xml_file: str = "pusher_v5.xml",
        frame_skip: int = 5,
        reward_near_weight: float = 0.5,
        reward_dist_weight: float = 1.0,
        reward_control_weight: float = 0.1,
    ) -> None:
        physics = open_physics("mujoco", xml_file, num_envs, device, fields=("xpos",))
        super().__init__(physics, frame_skip, max_episode_steps, observation_size=23)
        bodies = physics.field("xpos")
        names = ("tips_arm", "object", "goal")
        self._tip, self._cylinder, self._goal = (bodies[:, physics.model.body(name).id] for name in names)
        arm = self.qpos[:, :_ARM_JOINTS], self.qvel[:, :_ARM_JOINTS]
        self._observed = [*arm, self._tip, self._cylinder, self._goal]
        self._reward_near_weight = reward_near_weight
        self._reward_dist_weight = reward_dist_weight
        self._reward_control_weight = reward_control_weight
        self._candidates = torch.arange(_CANDIDATES, device=self.device)

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """The arm at rest but for a little velocity, the cylinder uniform in a rectangle, not too near to its goal."""
        _, qvel = self.noisy_state(key, _VELOCITY_NOISE)
        qvel[:, -4:] = 0
        free = self.qpos.shape[1] + qvel.shape[1]  # the first counter that the noise leaves
        counter = self._candidates.add(free)
        x = uniform(key[:, None], counter).to(self.qpos.dtype).mul_(0.3).sub_(0.3)
        y = uniform(key[:, None], counter + _CANDIDATES).to(self.qpos.dtype).mul_(0.4).sub_(0.2)
        far = torch.hypot(x, y) > _MIN_GOAL_DISTANCE
        chosen = far.to(torch.uint8).argmax(1, keepdim=True)  # the first of them
        qpos = self._qpos0.repeat(key.shape[0], 1)
        qpos[:, -4:-3], qpos[:, -3:-2] = x.gather(1, chosen), y.gather(1, chosen)
        qpos[:, -2:] = 0
        return qpos, qvel

    def observe(self, out: Tensor) -> None:
        """Angles, velocities, positions."""
        torch.cat(self._observed, 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Minus both distances and control cost."""
        near = torch.linalg.vector_norm(self._cylinder - self._tip, dim=1).mul_(-self._reward_near_weight)
        distance = torch.linalg.vector_norm(self._cylinder - self._goal, dim=1)
        cost = self.ctrl.square().sum(1)
        reward = near.sub_(distance, alpha=self._reward_dist_weight).sub_(cost, alpha=self._reward_control_weight)
        return reward, self.never
