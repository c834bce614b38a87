"""How MuJoCo draws without a screen: by EGL (a GPU's, or Mesa's), else by OSMesa; which one works
is tried out."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache

from podracer_core.errors import PreconditionFailed

_VARIABLE = "MUJOCO_GL"
_BACKENDS = ("egl", "osmesa")
_TRIAL = "import mujoco; context = mujoco.GLContext(16, 16); context.make_current(); context.free()"
_TRIAL_TIMEOUT_S = 30.0


def draws_with_mujoco(entry_point: str) -> bool:
    """Whether Gymnasium's environment of this entry point is one of its MuJoCo tasks."""
    return (
        entry_point.startswith("gymnasium.envs.mujoco")
        and importlib.util.find_spec("mujoco") is not None
    )


def set_up_offscreen() -> None:
    """Set MUJOCO_GL for the processes that are started from now on, unless it is set.

    Raises PreconditionFailed (NO_RENDERER) where neither EGL nor OSMesa works.
    """
    if not os.environ.get(_VARIABLE):
        os.environ[_VARIABLE] = working_backend()


@cache
def working_backend() -> str:
    """The first backend that draws, tried in processes of their own: a library that fails leaves
    its process unusable for the next one. Raises PreconditionFailed if none works."""
    problems = []
    for backend in _BACKENDS:
        environment = os.environ | {_VARIABLE: backend}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _TRIAL],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRIAL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{backend}: no answer within {_TRIAL_TIMEOUT_S:.0f} s")
            continue
        if done.returncode == 0:
            return backend
        lines = done.stderr.split("Exception ignored")[0].strip().splitlines() or [
            f"exit status {done.returncode}"
        ]
        problems.append(f"{backend}: {lines[-1].strip()}")
    raise PreconditionFailed(
        f"MuJoCo cannot draw here without a screen ({'; '.join(problems)}): install EGL (Debian: "
        f"libegl1, and a driver or libgl1-mesa-dri) or OSMesa (libosmesa6), or set {_VARIABLE}",
        reason="NO_RENDERER",
    )
