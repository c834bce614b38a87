"""The engine that steps the worlds: C MuJoCo on a CPU, MuJoCo Warp on a CUDA device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import gymnasium.envs
import mujoco
import torch

from podracer_core.environments.mujoco.physics import Physics
from podracer_core.environments.mujoco_info import Engine
from podracer_core.errors import InvalidInput, PreconditionFailed


def open_physics(
    engine: Engine,
    xml_file: str,
    num_envs: int,
    device: torch.device | str,
    fields: Sequence[str] = (),
) -> Physics:
    """`num_envs` worlds of the model in `xml_file` (see `load_model`), with `fields` of `mjData` to
    read.

    `engine` "auto" is "warp" on a CUDA device and "mujoco" on a CPU. Raises InvalidInput for what
    cannot be, and PreconditionFailed where Warp is not installed."""
    if num_envs < 1:
        raise InvalidInput(f"num_envs must be at least 1, not {num_envs}", num_envs=num_envs)
    place = torch.device(device)
    chosen: str = ("mujoco" if place.type == "cpu" else "warp") if engine == "auto" else engine
    if chosen == "mujoco" and place.type == "cpu":
        from podracer_core.environments.mujoco.physics import BatchPhysics

        return BatchPhysics(load_model(xml_file), num_envs, fields)
    if chosen == "warp":
        return _open_warp(xml_file, num_envs, place, fields)
    if chosen == "mujoco":
        message = f"C MuJoCo steps {xml_file} on a CPU only, not on {place}"
    else:
        message = f"engine must be auto, mujoco or warp, not {engine!r}"
    raise InvalidInput(message, field="environment.kwargs.engine")


def _open_warp(
    xml_file: str, num_envs: int, device: torch.device, fields: Sequence[str]
) -> Physics:
    try:
        from podracer_core.environments.mujoco.warp_physics import WarpPhysics
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("podracer_core"):
            raise
        message = (
            f"MuJoCo Warp, which steps {xml_file} on {device}, needs "
            f"podracer-core[mujoco-warp]: {error}"
        )
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    return WarpPhysics(load_model(xml_file), num_envs, device, fields)


def load_model(xml_file: str) -> mujoco.MjModel:
    """The model in `xml_file`: one of Gymnasium's, or a path that starts with ".", "~" or "/".

    Raises InvalidInput if there is none, or MuJoCo does not understand it.
    """
    own = xml_file.startswith((".", "~", "/"))
    assets = Path(gymnasium.envs.__file__).parent / "mujoco" / "assets"
    path = Path(xml_file).expanduser() if own else assets / xml_file
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in assets.glob("*.xml")))
        raise _no_model(f"there is no model {path}; Gymnasium's are {known}")
    try:
        # Through MjSpec a deprecation (`settotalmass` of half_cheetah.xml) is a Python warning that
        # can be ignored; MjModel.from_xml_path would write it to MUJOCO_LOG.TXT in the working
        # directory.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass'")
            return mujoco.MjSpec.from_file(str(path)).compile()
    except ValueError as error:
        reason = " ".join(str(error).split())  # it comes in several lines
        raise _no_model(f"MuJoCo cannot read {path}: {reason}") from error


def _no_model(message: str) -> InvalidInput:
    return InvalidInput(message, field="environment.kwargs.xml_file")
