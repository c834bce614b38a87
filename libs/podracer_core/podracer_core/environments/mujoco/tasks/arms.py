"""Reacher-v5 and Pusher-v5: Gymnasium's models, observations and rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco_info import PusherArguments, ReacherArguments
from podracer_core.random_numbers import uniform

_VELOCITY_NOISE = 0.005

# Of Reacher.
_POSITION_NOISE = 0.1
_GOAL_RADIUS = 0.2  # m

# Of Pusher.
_ARM_JOINTS = 7
_MIN_GOAL_DISTANCE = 0.17  # m, of the cylinder from its goal
_CANDIDATES = 32  # places for the cylinder; all are too near once in 10^13 episodes, and then the first is taken


class Reacher(MuJoCoEnvironment):
    """Bring the tip of a two-link arm to a target in its plane; it never ends by itself.

    Observation float32 [N, 10]: cosines and sines of both angles, position of the target, angular velocities, and the
    way from the target to the tip in the plane. Action [N, 2]: torques of the hinges. Reward: minus the distance of
    tip and target, minus Σ action².
    """

    arguments_type = ReacherArguments
    arguments: ReacherArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._tip, self._target = _bodies(self, "fingertip", "target")
        return self.qpos[:, :2], self.qpos[:, :2], self.qpos[:, 2:], self.qvel[:, :2], self._target[:, :2]

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
        angles, _, goal, velocities, _ = self.observed
        way = (self._tip - self._target)[:, :2]
        torch.cat([angles.cos(), angles.sin(), goal, velocities, way], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Minus distance and control cost."""
        reward = torch.linalg.vector_norm(self._tip - self._target, dim=1).mul_(-self.arguments.reward_dist_weight)
        return reward.sub_(self.ctrl.square().sum(1), alpha=self.arguments.reward_control_weight), self.never


class Pusher(MuJoCoEnvironment):
    """Push a cylinder to its goal on a table with an arm of seven joints; it never ends by itself.

    Observation float32 [N, 23]: angles and angular velocities of the arm, positions of its tip, the cylinder and the
    goal. Action [N, 7]: torques of the hinges. Reward: minus half the distance of tip and cylinder, minus that of
    cylinder and goal, minus 0.1 · Σ action².
    """

    arguments_type = PusherArguments
    arguments: PusherArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._tip, self._cylinder, self._goal = bodies = _bodies(self, "tips_arm", "object", "goal")
        self._candidates = torch.arange(_CANDIDATES, device=self.device)
        return self.qpos[:, :_ARM_JOINTS], self.qvel[:, :_ARM_JOINTS], *bodies

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

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Minus both distances and control cost."""
        asked = self.arguments
        near = torch.linalg.vector_norm(self._cylinder - self._tip, dim=1).mul_(-asked.reward_near_weight)
        distance = torch.linalg.vector_norm(self._cylinder - self._goal, dim=1)
        reward = near.sub_(distance, alpha=asked.reward_dist_weight)
        return reward.sub_(self.ctrl.square().sum(1), alpha=asked.reward_control_weight), self.never


def _bodies(task: MuJoCoEnvironment, *names: str) -> list[Tensor]:
    """Where these are, [N, 3] each."""
    return [task.physics.field("xpos")[:, task.physics.model.body(name).id] for name in names]
