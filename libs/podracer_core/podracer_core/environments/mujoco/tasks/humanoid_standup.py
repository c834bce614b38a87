"""HumanoidStandup-v5: Gymnasium's model, observation and reward, without contact forces (see `engine`).

Tassa, Erez and Todorov 2012, "Synthesis and Stabilization of Complex Behaviors through Online Trajectory
Optimization".
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.environments.mujoco.engine import open_physics, refuse_contact_forces
from podracer_core.environments.mujoco.environment import MuJoCoEnvironment
from podracer_core.environments.mujoco.tasks.humanoid import HumanoidObservation

__all__ = ["HumanoidStandup"]


class HumanoidStandup(MuJoCoEnvironment):
    """Stand up from lying on the back, and stay up; it never ends by itself.

    Observation float32 [N, 270]: see `HumanoidObservation`, x and y left out. Action [N, 17]: torques of the hinges.
    Reward: height of the torso over the physics time step, plus 1, minus 0.1 · Σ action². (Gymnasium's
    `uph_cost_weight` multiplies nothing there, and is not taken here.) With `include_cfrc_ext_in_observation` true and
    `impact_cost_weight` 5e-7 it would be Gymnasium's default; anything but false and 0 is InvalidInput.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = 1000,
        *,
        xml_file: str = "humanoidstandup.xml",
        frame_skip: int = 5,
        ctrl_cost_weight: float = 0.1,
        impact_cost_weight: float = 0.0,
        reset_noise_scale: float = 1e-2,
        exclude_current_positions_from_observation: bool = True,
        include_cinert_in_observation: bool = True,
        include_cvel_in_observation: bool = True,
        include_qfrc_actuator_in_observation: bool = True,
        include_cfrc_ext_in_observation: bool = False,
    ) -> None:
        entry_point = "gymnasium.envs.mujoco.humanoidstandup_v5:HumanoidStandupEnv"
        refuse_contact_forces(entry_point, "impact_cost_weight", impact_cost_weight, include_cfrc_ext_in_observation)
        observation = HumanoidObservation(
            not exclude_current_positions_from_observation,
            include_cinert_in_observation,
            include_cvel_in_observation,
            include_qfrc_actuator_in_observation,
        )
        physics = open_physics("mujoco", xml_file, num_envs, device, observation.fields)
        self._observed = observation.parts(physics)
        super().__init__(physics, frame_skip, max_episode_steps, sum(part.shape[1] for part in self._observed))
        self._height = self.qpos[:, 2]
        self._time_step = float(physics.model.opt.timestep)
        self._ctrl_cost_weight = ctrl_cost_weight
        self._reset_noise_scale = reset_noise_scale

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """Uniform positions and velocities about lying still."""
        return self.noisy_state(key, self._reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """All parts, one after the other."""
        torch.cat(self._observed, 1, out=out)

    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Height minus control cost."""
        cost = self.ctrl.square().sum(1)
        return self._height.div(self._time_step).sub_(cost, alpha=self._ctrl_cost_weight).add_(1), self.never
