"""What compiles kernels."""

from __future__ import annotations

import importlib.util
import shutil


def missing() -> str:
    """What this machine lacks to compile kernels; empty where nothing is missing."""
    if importlib.util.find_spec("triton") is None:
        return "triton, which comes with the builds of torch for CUDA"
    return "" if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") else "a C compiler (gcc)"
