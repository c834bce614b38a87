"""Triton's kernels on a machine without a GPU: interpreted on a CPU, and compiled ahead of time for
chips."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "marked", ["not thorough", pytest.param("thorough", marks=pytest.mark.thorough)]
)
def test_they_calculate_what_autograd_does(marked):
    options = ["-q", "-m", marked, "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, HERE / "ppo_checks.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]


@pytest.mark.thorough
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_they_compile_for(capability):
    """By Triton's own compilers, on the chip. The usual form, 64-64, has no spills; the largest has
    none on sm_90."""
    command = [sys.executable, HERE / "compile_ahead.py", str(capability)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    usual, largest = map(json.loads, run.stdout.splitlines())
    for kernel in ("gradient", "act", "loss"):
        assert max(usual[kernel]["shared_bytes"], largest[kernel]["shared_bytes"]) <= 99 * 1024
        assert usual[kernel]["spilled_bytes"] == 0
    assert largest["act"]["spilled_bytes"] == largest["loss"]["spilled_bytes"] == 0
    assert largest["gradient"]["spilled_bytes"] == 0 or capability != 90
