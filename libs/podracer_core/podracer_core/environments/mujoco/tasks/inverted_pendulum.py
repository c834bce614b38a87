"""InvertedPendulum-v5: Gymnasium's model, observation, reward and end.

Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control Problems".
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import open_physics
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment

__all__ = ["InvertedPendulum"]

_MAX_ANGLE = 0.2  # rad


class InvertedPendulum(MuJoCoEnvironment):
    """Keep a pole upright on a cart by pushing the cart along x.

    Observation float32 [N, 4]: position of the cart, angle of the pole, and their velocities. Action [N, 1]: the
    force on the cart. Reward 1 a step; it ends, with reward 0, when the pole leans more than 0.2 rad.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "inverted_pendulum.xml",
        frame_skip: int = 2,
        reset_noise_scale: float = 0.01,
    ) -> None:
        physics = open_physics("mujoco", xml_file, num_envs, device)
        super().__init__(physics, frame_skip, max_episode_steps, physics.model.nq + physics.model.nv)
        self._observed = [self.qpos, self.qvel]
        self._angle = self.qpos[:, 1]
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about upright."""
        return self.noisy_state(key, self._reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """Positions and velocities."""
        torch.cat(self._observed, 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """1 until it falls."""
        fallen = self._angle.abs() > _MAX_ANGLE
        return fallen.logical_not(), fallen
