"""Gymnasium's MuJoCo models, loaded so that every number in them is the one that Gymnasium gets."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium.envs
import mujoco

from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["load_model"]


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
        # Through MjSpec a deprecation (`settotalmass` of half_cheetah.xml) is a Python warning that can be ignored;
        # MjModel.from_xml_path would write it to MUJOCO_LOG.TXT in the working directory.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass'")
            return mujoco.MjSpec.from_file(str(path)).compile()
    except ValueError as error:
        reason = " ".join(str(error).split())  # it comes in several lines
        raise _no_model(f"MuJoCo cannot read {path}: {reason}") from error


def _no_model(message: str) -> InvalidInput:
    return InvalidInput(message, violations=[FieldViolation("environment.kwargs.xml_file", message)])
