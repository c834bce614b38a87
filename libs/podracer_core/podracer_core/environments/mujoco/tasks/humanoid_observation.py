"""What Humanoid and HumanoidStandup see of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from podracer_core.environments.mujoco.physics import Physics

__all__ = ["HumanoidObservation"]

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
