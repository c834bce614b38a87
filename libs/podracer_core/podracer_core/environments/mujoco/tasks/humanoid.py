"""Humanoid-v5: Gymnasium's model, observation, reward and end, without contact forces (see `engine`).

Tassa, Erez and Todorov 2012, "Synthesis and Stabilization of Complex Behaviors through Online Trajectory
Optimization".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import Engine, open_physics, refuse_contact_forces
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco.physics import Physics

__all__ = ["Humanoid", "HumanoidObservation"]


class Humanoid(MuJoCoEnvironment):
    """Walk along x on two legs without falling.

    Observation float32 [N, 270]: see `HumanoidObservation`, x and y left out. Action [N, 17]: torques of the hinges.
    Reward: 1.25 · forward velocity of the centre of mass, plus 5 while healthy, minus 0.1 · Σ action². It ends when
    unhealthy: height of the torso out of its range. With `include_cfrc_ext_in_observation` true and
    `contact_cost_weight` 5e-7 it would be Gymnasium's default; anything but false and 0 is InvalidInput.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "humanoid.xml",
        frame_skip: int = 5,
        forward_reward_weight: float = 1.25,
        ctrl_cost_weight: float = 0.1,
        contact_cost_weight: float = 0.0,
        healthy_reward: float = 5.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (1.0, 2.0),
        reset_noise_scale: float = 1e-2,
        exclude_current_positions_from_observation: bool = True,
        include_cinert_in_observation: bool = True,
        include_cvel_in_observation: bool = True,
        include_qfrc_actuator_in_observation: bool = True,
        include_cfrc_ext_in_observation: bool = False,
        engine: Engine = "auto",
    ) -> None:
        entry_point = "gymnasium.envs.mujoco.humanoid_v5:HumanoidEnv"
        refuse_contact_forces(entry_point, "contact_cost_weight", contact_cost_weight, include_cfrc_ext_in_observation)
        observation = HumanoidObservation(
            not exclude_current_positions_from_observation,
            include_cinert_in_observation,
            include_cvel_in_observation,
            include_qfrc_actuator_in_observation,
        )
        physics = open_physics(engine, xml_file, num_envs, device, fields=("xipos", *observation.fields))
        self._observed = observation.parts(physics)
        super().__init__(physics, frame_skip, max_episode_steps, sum(part.shape[1] for part in self._observed))
        self._height = self.qpos[:, 2]
        self._body_x = physics.field("xipos")[:, :, 0]
        mass = torch.as_tensor(physics.model.body_mass, dtype=physics.dtype, device=self.device)
        self._mass_share = mass / mass.sum()
        self._forward_reward_weight = forward_reward_weight
        self._ctrl_cost_weight = ctrl_cost_weight
        self._healthy_reward = healthy_reward
        self._terminate_when_unhealthy = terminate_when_unhealthy
        self._healthy_z_range = tuple(healthy_z_range)
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about the model's own state."""
        return self.noisy_state(key, self._reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """All parts, one after the other."""
        torch.cat(self._observed, 1, out=out)

    def position(self) -> Tensor:
        """x of the centre of mass."""
        return self._body_x @ self._mass_share

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and healthy reward minus control cost; the end when unhealthy."""
        low, high = self._healthy_z_range
        healthy = (self._height > low).logical_and_(self._height < high)
        reward = velocity.mul_(self._forward_reward_weight).add_(healthy, alpha=self._healthy_reward)
        reward.sub_(self.ctrl.square().sum(1), alpha=self._ctrl_cost_weight)
        return reward, healthy.logical_not() if self._terminate_when_unhealthy else self.never


_ROOT_COORDINATES = 6  # of the free joint, which no motor drives


@dataclass(frozen=True, slots=True)
class HumanoidObservation:
    """Which parts the observation has, in this order: positions, velocities, then for all bodies but the world

    cinert          mass and inertia in the frame of the centre of mass, 10 a body
    cvel            velocity in that frame, 6 a body
    qfrc_actuator   the forces of the motors, one a coordinate other than the root's
    """

    current_positions: bool
    cinert: bool
    cvel: bool
    qfrc_actuator: bool

    @property
    def fields(self) -> tuple[str, ...]:
        """The derived fields of `mjData` that it needs."""
        asked = {"cinert": self.cinert, "cvel": self.cvel, "qfrc_actuator": self.qfrc_actuator}
        return tuple(name for name, wanted in asked.items() if wanted)

    def parts(self, physics: Physics) -> list[Tensor]:
        """Live views [N, k] of all of it."""
        skipped = 0 if self.current_positions else 2
        found = [physics.field("qpos")[:, skipped:], physics.field("qvel")]
        for name in self.fields:
            field = physics.field(name)
            found.append(field[:, _ROOT_COORDINATES:] if name == "qfrc_actuator" else _without_world(field))
        return found


def _without_world(field: Tensor) -> Tensor:
    """Rows [N, (nbody - 1) * k] of [N, nbody, k]; a copy would not be live, and `view` refuses to make one."""
    return field[:, 1:].view(field.shape[0], -1)
