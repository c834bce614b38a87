"""Tasks of arms and poles that stay in place: Reacher, Pusher and both inverted pendulums (v5),
Gymnasium's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco_info import (
    InvertedDoublePendulumArguments,
    InvertedPendulumArguments,
    PusherArguments,
    ReacherArguments,
)
from podracer_core.random_numbers import uniform

_VELOCITY_NOISE = 0.005

# Of Reacher.
_POSITION_NOISE = 0.1
_GOAL_RADIUS = 0.2  # m

# Of Pusher.
_ARM_JOINTS = 7
_MIN_GOAL_DISTANCE = 0.17  # m, of the cylinder from its goal
# places for the cylinder; all are too near once in 10^13 episodes, and then the first is taken
_CANDIDATES = 32

# Of the pendulums: the angle of the single one, the rest of the double one.
_MAX_ANGLE = 0.2  # rad
_MAX_OBSERVED = 10.0
_UPRIGHT_HEIGHT = 2.0  # about that of the tip, in metres
_MIN_HEIGHT = 1.0


class Reacher(MuJoCoEnvironment):
    """Bring the tip of a two-link arm to a target in its plane; it never ends by itself.

    Observation float32 [N, 10]: cosines and sines of both angles, position of the target, angular
    velocities, and the way from the target to the tip in the plane. Action [N, 2]: torques of the
    hinges. Reward: minus the distance of tip and target, minus Σ action²."""

    arguments_type = ReacherArguments
    arguments: ReacherArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._tip, self._target = _bodies(self, "fingertip", "target")
        return (
            self.qpos[:, :2],
            self.qpos[:, :2],
            self.qpos[:, 2:],
            self.qvel[:, :2],
            self._target[:, :2],
        )

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
        reward = torch.linalg.vector_norm(self._tip - self._target, dim=1).mul_(
            -self.arguments.reward_dist_weight
        )
        return reward.sub_(
            self.ctrl.square().sum(1), alpha=self.arguments.reward_control_weight
        ), self.never


class Pusher(MuJoCoEnvironment):
    """Push a cylinder to its goal on a table with an arm of seven joints; it never ends by itself.

    Observation float32 [N, 23]: angles and angular velocities of the arm, positions of its tip, the
    cylinder and the goal. Action [N, 7]: torques of the hinges. Reward: minus half the distance of
    tip and cylinder, minus that of cylinder and goal, minus 0.1 · Σ action²."""

    arguments_type = PusherArguments
    arguments: PusherArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._tip, self._cylinder, self._goal = bodies = _bodies(self, "tips_arm", "object", "goal")
        self._candidates = torch.arange(_CANDIDATES, device=self.device)
        return self.qpos[:, :_ARM_JOINTS], self.qvel[:, :_ARM_JOINTS], *bodies

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """The arm at rest but for a little velocity, the cylinder uniform in a rectangle, not too
        near to its goal."""
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
        near = torch.linalg.vector_norm(self._cylinder - self._tip, dim=1).mul_(
            -asked.reward_near_weight
        )
        distance = torch.linalg.vector_norm(self._cylinder - self._goal, dim=1)
        reward = near.sub_(distance, alpha=asked.reward_dist_weight)
        return reward.sub_(self.ctrl.square().sum(1), alpha=asked.reward_control_weight), self.never


def _bodies(task: MuJoCoEnvironment, *names: str) -> list[Tensor]:
    """The positions of the named bodies, [N, 3] each."""
    return [task.physics.field("xpos")[:, task.physics.model.body(name).id] for name in names]


class InvertedPendulum(MuJoCoEnvironment):
    """Keep a pole upright on a cart by pushing the cart along x.

    Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult Learning
    Control Problems". Observation float32 [N, 4]: position of the cart, angle of the pole, and
    their velocities. Action [N, 1]: the force on the cart. Reward 1 a step; it ends, with reward 0,
    when the pole leans more than 0.2 rad."""

    arguments_type = InvertedPendulumArguments
    arguments: InvertedPendulumArguments

    def set_up(self) -> Sequence[Tensor]:
        self._angle = self.qpos[:, 1]
        return self.qpos, self.qvel

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about upright."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """1 until it falls."""
        fallen = self._angle.abs() > _MAX_ANGLE
        return fallen.logical_not(), fallen


class InvertedDoublePendulum(MuJoCoEnvironment):
    """Keep two poles, one upon the other, upright on a cart by pushing the cart along x.

    Observation float32 [N, 9]: position of the cart, sines and cosines of both angles, velocities
    within ±10, and the constraint force on the cart within ±10. Action [N, 1]: the force on the
    cart. Reward: 10, minus 0.01 x² + (height - 2)² of the tip, minus 0.001 ω₁² + 0.005 ω₂². It
    ends, without the 10, when the tip is not higher than 1 m."""

    arguments_type = InvertedDoublePendulumArguments
    arguments: InvertedDoublePendulumArguments

    def fields(self) -> Sequence[str]:
        return "site_xpos", "qfrc_constraint"

    def set_up(self) -> Sequence[Tensor]:
        cart = self.qpos[:, :1]
        angles = self.qpos[:, 1:]
        force = self.physics.field("qfrc_constraint")[:, :1]
        self._tip_x, _, self._tip_height = self.physics.field("site_xpos")[:, 0].unbind(1)
        self._angular_velocities = self.qvel[:, 1:3]
        self._velocity_weights = torch.tensor(
            [1e-3, 5e-3], dtype=self.physics.dtype, device=self.device
        )
        return cart, angles, angles, self.qvel, force

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities about upright."""
        return self.noisy_state(key, self.arguments.reset_noise_scale, normal_velocity=True)

    def observe(self, out: Tensor) -> None:
        """Cart, sines, cosines, velocities, force."""
        cart, angles, _, velocities, force = self.observed
        limited = (part.clamp(-_MAX_OBSERVED, _MAX_OBSERVED) for part in (velocities, force))
        torch.cat([cart, angles.sin(), angles.cos(), *limited], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Healthy reward minus distance and velocity penalties; the end when it has fallen."""
        fallen = self._tip_height <= _MIN_HEIGHT
        distance = (
            self._tip_x.square().mul_(0.01).add_(self._tip_height.sub(_UPRIGHT_HEIGHT).square_())
        )
        reward = (
            fallen.logical_not()
            .to(distance.dtype)
            .mul_(self.arguments.healthy_reward)
            .sub_(distance)
        )
        return reward.sub_(self._angular_velocities.square() @ self._velocity_weights), fallen
