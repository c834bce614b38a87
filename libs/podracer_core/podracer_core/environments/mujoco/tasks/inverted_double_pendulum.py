"""InvertedDoublePendulum-v5: Gymnasium's model, observation, reward and end."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment

__all__ = ["InvertedDoublePendulum"]

_MAX_OBSERVED = 10.0
_UPRIGHT_HEIGHT = 2.0  # about that of the tip, in metres
_MIN_HEIGHT = 1.0


class InvertedDoublePendulum(MuJoCoEnvironment):
    """Keep two poles, one upon the other, upright on a cart by pushing the cart along x.

    Observation float32 [N, 9]: position of the cart, sines and cosines of both angles, velocities within ±10, and the
    constraint force on the cart within ±10. Action [N, 1]: the force on the cart. Reward: 10, minus
    0.01 x² + (height - 2)² of the tip, minus 0.001 ω₁² + 0.005 ω₂². It ends, without the 10, when the tip is not
    higher than 1 m.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "inverted_double_pendulum.xml",
        frame_skip: int = 5,
        healthy_reward: float = 10.0,
        reset_noise_scale: float = 0.1,
    ) -> None:
        physics = open_physics("mujoco", xml_file, num_envs, device, fields=("site_xpos", "qfrc_constraint"))
        super().__init__(physics, frame_skip, max_episode_steps, observation_size=9)
        self._cart, self._angles = self.qpos[:, :1], self.qpos[:, 1:]
        self._cart_force = physics.field("qfrc_constraint")[:, :1]
        self._tip_x, _, self._tip_height = physics.field("site_xpos")[:, 0].unbind(1)
        self._angular_velocities = self.qvel[:, 1:3]
        self._velocity_weights = torch.tensor([1e-3, 5e-3], dtype=physics.dtype, device=self.device)
        self._healthy_reward = healthy_reward
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities about upright."""
        return self.noisy_state(key, self._reset_noise_scale, normal_velocity=True)

    def observe(self, out: Tensor) -> None:
        """Cart, sines, cosines, velocities, force."""
        velocities = self.qvel.clamp(-_MAX_OBSERVED, _MAX_OBSERVED)
        force = self._cart_force.clamp(-_MAX_OBSERVED, _MAX_OBSERVED)
        torch.cat([self._cart, self._angles.sin(), self._angles.cos(), velocities, force], 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Healthy reward minus distance and velocity penalties; the end when it has fallen."""
        fallen = self._tip_height <= _MIN_HEIGHT
        distance = self._tip_x.square().mul_(0.01).add_(self._tip_height.sub(_UPRIGHT_HEIGHT).square_())
        reward = fallen.logical_not().to(distance.dtype).mul_(self._healthy_reward).sub_(distance)
        return reward.sub_(self._angular_velocities.square() @ self._velocity_weights), fallen
