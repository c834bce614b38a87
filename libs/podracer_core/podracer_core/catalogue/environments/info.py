"""What is known of an environment without starting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from podracer_core.catalogue.spaces import Space

__all__ = ["EnvironmentInfo"]


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What is known of an environment without starting it.

    The spaces are None where `needs_inspection`. `factory` is the "module:Name" of the class that implements a
    batched environment in this process, empty where processes with a Gymnasium environment do.
    """

    id: str
    description: str
    backend: Literal["torch", "mujoco", "installed", "gymnasium"]
    devices: tuple[str, ...] = ("cpu",)
    observation_space: Space | None = None
    action_space: Space | None = None
    max_episode_steps: int | None = None
    factory: str = ""

    @property
    def needs_inspection(self) -> bool:
        """True if the spaces are unknown until someone has started it."""
        return self.observation_space is None or self.action_space is None
