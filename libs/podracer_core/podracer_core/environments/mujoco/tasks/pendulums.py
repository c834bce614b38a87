"""InvertedPendulum-v5 and InvertedDoublePendulum-v5: Gymnasium's models, observations, rewards and ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco_info import InvertedDoublePendulumArguments, InvertedPendulumArguments

_MAX_ANGLE = 0.2  # rad, of the single one

# Of the double one.
_MAX_OBSERVED = 10.0
_UPRIGHT_HEIGHT = 2.0  # about that of the tip, in metres
_MIN_HEIGHT = 1.0


class InvertedPendulum(MuJoCoEnvironment):
    """Keep a pole upright on a cart by pushing the cart along x.

    Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control Problems".
    Observation float32 [N, 4]: position of the cart, angle of the pole, and their velocities. Action [N, 1]: the force
    on the cart. Reward 1 a step; it ends, with reward 0, when the pole leans more than 0.2 rad.
    """

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

    Observation float32 [N, 9]: position of the cart, sines and cosines of both angles, velocities within ±10, and the
    constraint force on the cart within ±10. Action [N, 1]: the force on the cart. Reward: 10, minus
    0.01 x² + (height - 2)² of the tip, minus 0.001 ω₁² + 0.005 ω₂². It ends, without the 10, when the tip is not
    higher than 1 m.
    """

    arguments_type = InvertedDoublePendulumArguments
    arguments: InvertedDoublePendulumArguments

    def fields(self) -> Sequence[str]:
        return "site_xpos", "qfrc_constraint"

    def set_up(self) -> Sequence[Tensor]:
        cart, angles, force = self.qpos[:, :1], self.qpos[:, 1:], self.physics.field("qfrc_constraint")[:, :1]
        self._tip_x, _, self._tip_height = self.physics.field("site_xpos")[:, 0].unbind(1)
        self._angular_velocities = self.qvel[:, 1:3]
        self._velocity_weights = torch.tensor([1e-3, 5e-3], dtype=self.physics.dtype, device=self.device)
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
        distance = self._tip_x.square().mul_(0.01).add_(self._tip_height.sub(_UPRIGHT_HEIGHT).square_())
        reward = fallen.logical_not().to(distance.dtype).mul_(self.arguments.healthy_reward).sub_(distance)
        return reward.sub_(self._angular_velocities.square() @ self._velocity_weights), fallen
