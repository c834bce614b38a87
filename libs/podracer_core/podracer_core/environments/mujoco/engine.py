"""Which engine steps the worlds: C MuJoCo on a CPU, MuJoCo Warp on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from podracer_core.environments.mujoco.model import load_model
from podracer_core.environments.mujoco.physics import Physics
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed

__all__ = ["Engine", "open_physics"]

Engine = Literal["auto", "mujoco", "warp"]


def open_physics(
    engine: Engine, xml_file: str, num_envs: int, device: torch.device | str, fields: Sequence[str] = ()
) -> Physics:
    """`num_envs` worlds of the model in `xml_file` (see `load_model`), with `fields` of `mjData` to read.

    `engine` "auto" is "warp" on a CUDA device and "mujoco" on a CPU. Raises InvalidInput for what cannot be, and
    PreconditionFailed where Warp is not installed.
    """
    if num_envs < 1:
        raise InvalidInput(f"num_envs must be at least 1, not {num_envs}", num_envs=num_envs)
    place = torch.device(device)
    chosen: str = ("mujoco" if place.type == "cpu" else "warp") if engine == "auto" else engine
    if chosen == "mujoco" and place.type == "cpu":
        from podracer_core.environments.mujoco.batch_physics import BatchPhysics

        return BatchPhysics(load_model(xml_file), num_envs, fields)
    if chosen == "warp":
        return _open_warp(xml_file, num_envs, place, fields)
    if chosen == "mujoco":
        message = f"C MuJoCo steps {xml_file} on a CPU only, not on {place}"
    else:
        message = f"engine must be auto, mujoco or warp, not {engine!r}"
    raise InvalidInput(message, violations=[FieldViolation("environment.kwargs.engine", message)])


def _open_warp(xml_file: str, num_envs: int, device: torch.device, fields: Sequence[str]) -> Physics:
    try:
        from podracer_core.environments.mujoco.warp_physics import WarpPhysics
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("podracer_core"):
            raise
        message = f"MuJoCo Warp, which steps {xml_file} on {device}, needs podracer-core[mujoco-warp]: {error}"
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    return WarpPhysics(load_model(xml_file), num_envs, device, fields)
