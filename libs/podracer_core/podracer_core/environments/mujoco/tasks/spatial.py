"""Ant-v5, Humanoid-v5 and HumanoidStandup-v5: Gymnasium's, without contact forces in the
observation.

Evaluations subtract the cost of these forces from the reward as Gymnasium does; training leaves it
out.

The humanoids are of Tassa, Erez and Todorov 2012, "Synthesis and Stabilization of Complex Behaviors
through Online Trajectory Optimization". Both observe float32 [N, 270], in this order: positions (x
and y left out), velocities, then for all bodies but the world

    cinert          mass and inertia in the frame of the centre of mass, 10 a body
    cvel            velocity in that frame, 6 a body
    qfrc_actuator   the forces of the motors, one a coordinate other than the root's

Action [N, 17]: torques of the hinges. Gymnasium's default is `include_cfrc_ext_in_observation`
true; here it is InvalidInput."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco_info import (
    AntArguments,
    HumanoidArguments,
    HumanoidParts,
    HumanoidStandupArguments,
)
from podracer_core.errors import InvalidInput

_ROOT_COORDINATES = 6  # of the free joint, which no motor drives


class Ant(MuJoCoEnvironment):
    """Four legs walk along x without falling over.

    Schulman, Moritz, Levine, Jordan and Abbeel 2016, "High-Dimensional Continuous Control Using
    Generalized Advantage Estimation". Observation float32 [N, 27]: positions (x and y left out) and
    velocities. Action [N, 8]: torques of the hinges. Reward: forward velocity of `main_body`
    (number or name), plus 1 while healthy, minus 0.5 · Σ action². It ends when unhealthy: height of
    the torso out of its range."""

    arguments_type = AntArguments
    contact_force_range = (-1.0, 1.0)
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
            names = ", ".join(
                filter(None, (model.body(index).name for index in range(model.nbody)))
            )
            message = f"main_body must be a body of the model ({names}) or its number, not {body!r}"
            raise InvalidInput(message, field="environment.kwargs.main_body") from error


class HumanoidStandup(MuJoCoEnvironment):
    """Stand up from lying on the back, and stay up; it never ends by itself.

    Reward: height of the torso over the physics time step, plus 1, minus 0.1 · Σ action².
    (Gymnasium's `uph_cost_weight` multiplies nothing there, and is not taken here.)"""

    arguments_type = HumanoidStandupArguments
    most_contact_cost = 10.0
    arguments: HumanoidStandupArguments

    def fields(self) -> Sequence[str]:
        return _parts(self.arguments)

    def set_up(self) -> Sequence[Tensor]:
        self._height = self.qpos[:, 2]
        self._time_step = float(self.physics.model.opt.timestep)
        return _views(self, self.arguments)

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about lying still."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Height minus control cost."""
        reward = self._height.div(self._time_step)
        return reward.sub_(self.ctrl.square().sum(1), alpha=self.arguments.ctrl_cost_weight).add_(
            1
        ), self.never


class Humanoid(MuJoCoEnvironment):
    """Walk along x on two legs without falling.

    Reward: 1.25 · forward velocity of the centre of mass, plus 5 while healthy, minus 0.1 · Σ
    action². It ends when unhealthy: height of the torso out of its range."""

    arguments_type = HumanoidArguments
    most_contact_cost = 10.0
    arguments: HumanoidArguments

    def fields(self) -> Sequence[str]:
        return "xipos", *_parts(self.arguments)

    def set_up(self) -> Sequence[Tensor]:
        self._height = self.qpos[:, 2]
        self._body_x = self.physics.field("xipos")[:, :, 0]
        mass = torch.as_tensor(
            self.physics.model.body_mass, dtype=self.physics.dtype, device=self.device
        )
        self._mass_share = mass / mass.sum()
        return _views(self, self.arguments)

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about the model's own state."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def position(self) -> Tensor:
        """x of the centre of mass."""
        return self._body_x @ self._mass_share

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        low, high = self.arguments.healthy_z_range
        healthy = (self._height > low).logical_and_(self._height < high)
        return self.walked(velocity, healthy, self.arguments)


def _parts(asked: HumanoidParts) -> list[str]:
    """The derived fields of `mjData` that are observed."""
    names = ("cinert", "cvel", "qfrc_actuator")
    return [name for name in names if getattr(asked, f"include_{name}_in_observation")]


def _views(task: MuJoCoEnvironment, asked: HumanoidParts) -> list[Tensor]:
    """Live views [N, k] of all that is observed."""
    found = [task.positions(2, asked), task.qvel]
    for name in _parts(asked):
        field = task.physics.field(name)
        # A copy would not be live, and `view` refuses to make one.
        without_world = (
            field[:, 1:].view(field.shape[0], -1)
            if field.dim() > 2
            else field[:, _ROOT_COORDINATES:]
        )
        found.append(without_world)
    return found
