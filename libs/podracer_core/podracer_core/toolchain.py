"""What compiles kernels for GPUs."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from pathlib import Path


def missing() -> str:
    """What this machine lacks to compile kernels; empty where nothing is missing."""
    if importlib.util.find_spec("triton") is None:
        return "triton, which comes with the builds of torch for CUDA"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "a C compiler (gcc)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python (python3-dev)"
    return ""
