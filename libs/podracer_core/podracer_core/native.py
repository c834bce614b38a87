"""What native libraries need: the settings that those below torch read when they are loaded, what
compiles kernels for GPUs, and how MuJoCo draws without a screen: by EGL (a GPU's, or Mesa's), else
by OSMesa; which one works is tried out."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from podracer_core.errors import PreconditionFailed

NATIVE_SETTINGS = {
    # Threads that spin while they wait for one another starve whatever else runs on the same cores;
    # threads that sleep at once need about 50 µs to wake up, several times what most operations
    # take. So a short while of spinning (100 µs or so, GNU's OpenMP, which torch has on Linux),
    # then sleep: PPO on HalfCheetah, 64 environments, two cores: 20 thousand steps/s asleep, 21
    # spinning, 28 so. Others than GNU's know only the policy.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",
    # A layer's results are large enough for the C library to give them back to the system each
    # time, which costs wide networks a tenth of their speed. (glibc's own names; whatever else
    # there is ignores them.)
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # Every session of a stream is read by a thread of its own. The C library gives new threads new
    # arenas, up to eight a core, and keeps what each has ever had: half a megabyte a lost session.
    # Python's lock lets one thread at a time allocate anyway.
    "MALLOC_ARENA_MAX": "2",
}
"""Variables for a process that trains or simulates, read by its native libraries when they are
loaded."""


def missing() -> str:
    """What this machine lacks to compile kernels; empty where nothing is missing."""
    if importlib.util.find_spec("triton") is None:
        return "triton, which comes with the builds of torch for CUDA"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "a C compiler (gcc)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python (python3-dev)"
    return ""


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
