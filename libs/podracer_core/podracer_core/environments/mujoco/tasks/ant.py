"""Ant-v5: Gymnasium's model, observation, reward and end, without contact forces (see `mujoco_info`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco_info import AntArguments
from podracer_core.errors import FieldViolation, InvalidInput


class Ant(MuJoCoEnvironment):
    """Four legs walk along x without falling over.

    Schulman, Moritz, Levine, Jordan and Abbeel 2016, "High-Dimensional Continuous Control Using Generalized Advantage
    Estimation". Observation float32 [N, 27]: positions (x and y left out) and velocities. Action [N, 8]: torques of
    the hinges. Reward: forward velocity of `main_body` (number or name), plus 1 while healthy, minus 0.5 · Σ action².
    It ends when unhealthy: height of the torso out of its range. With `include_cfrc_ext_in_observation` true and
    `contact_cost_weight` 5e-4 it would be Gymnasium's default; anything but false and 0 is InvalidInput.
    """

    arguments_type = AntArguments
    arguments: AntArguments

    def fields(self) -> Sequence[str]:
        return ("xpos",)

    def set_up(self) -> Sequence[Tensor]:
        self._height = self.qpos[:, 2]
        self._body_x = self.physics.field("xpos")[:, self._body_index(self.arguments.main_body), 0]
        return self.positions(2, self.arguments), self.qvel

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions, normal velocities about the model's own state."""
        return self.noisy_state(key, self.arguments.reset_noise_scale, normal_velocity=True)

    def position(self) -> Tensor:
        """x of the main body."""
        return self._body_x

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        low, high = self.arguments.healthy_z_range
        healthy = (self._height >= low).logical_and_(self._height <= high)
        return self.walked(velocity, healthy, self.arguments)

    def _body_index(self, body: int | str) -> int:
        model = self.physics.model
        try:
            return int(model.body(body).id)
        except (KeyError, IndexError) as error:
            names = ", ".join(filter(None, (model.body(index).name for index in range(model.nbody))))
            message = f"main_body must be a body of the model ({names}) or its number, not {body!r}"
            raise InvalidInput(message, violations=[FieldViolation("environment.kwargs.main_body", message)]) from error
