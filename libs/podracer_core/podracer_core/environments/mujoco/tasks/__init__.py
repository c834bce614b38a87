"""The tasks: what they observe, what they reward and how they end."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.environments.mujoco.tasks.planar import HalfCheetah
else:
    __all__, __getattr__ = exports(__name__)
