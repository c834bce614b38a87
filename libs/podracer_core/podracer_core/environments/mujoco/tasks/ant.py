"""Ant-v5: Gymnasium's model, observation, reward and end, without contact forces (see `engine`).

Schulman, Moritz, Levine, Jordan and Abbeel 2016, "High-Dimensional Continuous Control Using Generalized Advantage
Estimation".
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import Engine, open_physics, refuse_contact_forces
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco.physics import Physics
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["Ant"]


class Ant(MuJoCoEnvironment):
    """Four legs walk along x without falling over.

    Observation float32 [N, 27]: positions (x and y left out) and velocities. Action [N, 8]: torques of the hinges.
    Reward: forward velocity of `main_body` (number or name), plus 1 while healthy, minus 0.5 · Σ action². It ends when
    unhealthy: height of the torso out of its range. With `include_cfrc_ext_in_observation` true and
    `contact_cost_weight` 5e-4 it would be Gymnasium's default; anything but false and 0 is InvalidInput.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "ant.xml",
        frame_skip: int = 5,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.5,
        contact_cost_weight: float = 0.0,
        healthy_reward: float = 1.0,
        main_body: int | str = 1,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (0.2, 1.0),
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        include_cfrc_ext_in_observation: bool = False,
        engine: Engine = "auto",
    ) -> None:
        entry_point = "gymnasium.envs.mujoco.ant_v5:AntEnv"
        refuse_contact_forces(entry_point, "contact_cost_weight", contact_cost_weight, include_cfrc_ext_in_observation)
        physics = open_physics(engine, xml_file, num_envs, device, fields=("xpos",))
        skipped = 2 if exclude_current_positions_from_observation else 0
        size = physics.model.nq - skipped + physics.model.nv
        super().__init__(physics, frame_skip, max_episode_steps, size)
        self._observed = [self.qpos[:, skipped:], self.qvel]
        self._height = self.qpos[:, 2]
        self._body_x = physics.field("xpos")[:, _body_index(physics, main_body), 0]
        self._forward_reward_weight = forward_reward_weight
        self._ctrl_cost_weight = ctrl_cost_weight
        self._healthy_reward = healthy_reward
        self._terminate_when_unhealthy = terminate_when_unhealthy
        self._healthy_z_range = tuple(healthy_z_range)
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities about the model's own state."""
        return self.noisy_state(key, self._reset_noise_scale, normal_velocity=True)

    def observe(self, out: Tensor) -> None:
        """Positions and velocities."""
        torch.cat(self._observed, 1, out=out)

    def position(self) -> Tensor:
        """x of the main body."""
        return self._body_x

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        low, high = self._healthy_z_range
        healthy = (self._height >= low).logical_and_(self._height <= high)
        reward = velocity.mul_(self._forward_reward_weight).add_(healthy, alpha=self._healthy_reward)
        reward.sub_(self.ctrl.square().sum(1), alpha=self._ctrl_cost_weight)
        return reward, healthy.logical_not() if self._terminate_when_unhealthy else self.never


def _body_index(physics: Physics, body: int | str) -> int:
    try:
        return int(physics.model.body(body).id)
    except (KeyError, IndexError) as error:
        names = ", ".join(filter(None, (physics.model.body(index).name for index in range(physics.model.nbody))))
        message = f"main_body must be a body of the model ({names}) or its number, not {body!r}"
        raise InvalidInput(message, violations=[FieldViolation("environment.kwargs.main_body", message)]) from error
