"""Every algorithm, option and torch environment on pretended CUDA tensors; see pretended.py for
what that finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """guard.cpp for this torch, in seconds."""
    library, torch_home = tmp_path_factory.mktemp("guard") / "guard.so", Path(torch.__file__).parent
    headers = (torch_home / "include", torch_home / "include/torch/csrc/api/include")
    command = [COMPILER, "-shared", "-fPIC", "-std=c++20", HERE / "guard.cpp", "-o", library]
    command += [f"-I{folder}" for folder in headers]
    command += [f"-L{torch_home}/lib", f"-Wl,-rpath,{torch_home}/lib", "-lc10", "-ltorch_cpu"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to pretend a CUDA device with")
@pytest.mark.parametrize(
    "marked", ["not thorough", pytest.param("thorough", marks=pytest.mark.thorough)]
)
def test_nothing_mixes_devices_waits_in_a_graph_or_grows(guard, marked):
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marked]
    environment = os.environ | {"LD_PRELOAD": str(guard), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", *options, HERE / "checks.py"]
    run = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
