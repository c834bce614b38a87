"""What the images install: enough for every kind of environment, and by its hash."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.processes import ROOT

sys.path.insert(0, str(ROOT / "deploy" / "images"))
from requirements import CUDA, IMAGES, locked, requirements_of

ENVIRONMENTS = {
    "batched": "CartPole-v1",
    "gymnasium": "Acrobot-v1",
    "box2d": "LunarLander-v3",
    "mujoco": "InvertedPendulum-v5",
    "gymnasium's mujoco": "Pusher-v5",
}
NOT_IN_THE_IMAGE = """
import importlib.abc, os, sys

class NotInTheImage(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in os.environ["NOT_IN_THE_IMAGE"].split():
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

sys.meta_path.insert(0, NotInTheImage())
"""
STEP = """
import sys

import pyarrow.parquet, talib, torch
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import make_vec_environment

if __name__ == "__main__":
    for name in sys.argv[1:]:
        environment = make_vec_environment(EnvironmentSpec(id=name), 2, processes=1)
        environment.reset(torch.tensor([1, 2]))
        environment.close()
        print(name)
"""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed_by(requirements: Iterable[str]) -> set[str]:
    """Names of distributions: these, and what they need, of those that are installed here."""
    waiting, found = [(Requirement(one), "") for one in requirements], set[tuple[str, str]]()
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = _normal(one.name)
        for wanted in {"", *one.extras}:
            if (name, wanted) not in found:
                found.add((name, wanted))
                needs = importlib.metadata.requires(name) or ()
                waiting += [(Requirement(text), wanted) for text in needs]
    return {name for name, _ in found}


def _as_in(image: str, folder: Path) -> tuple[dict[str, str], set[str]]:
    """Variables of a process that finds no more than an image has, and the modules that it does not
    find."""
    inside = _installed_by(requirements_of(image))
    missing = {
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if not any(_normal(name) in inside or name.startswith("podracer") for name in distributions)
    }
    (folder / "sitecustomize.py").write_text(NOT_IN_THE_IMAGE)  # for its own processes too
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"NOT_IN_THE_IMAGE": " ".join(missing), "PYTHONPATH": paths}, missing


def test_the_image_of_the_orchestrator_has_the_live_page(tmp_path):
    environment, missing = _as_in("orchestrator", tmp_path)
    assert {"numpy", "matplotlib", "torch"} <= missing
    program = "import uvicorn, podracer_client.command.report, podracer_client.web.application"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_kind_of_environment_runs_with_what_an_image_has(tmp_path):
    environment, missing = _as_in("pod", tmp_path)
    inside = _installed_by(requirements_of("pod"))
    assert {"pandas", "OpenGL", "matplotlib"} <= missing
    (script := tmp_path / "step.py").write_text(STEP)
    # not on Linux on ARM
    wanted = [name for kind, name in ENVIRONMENTS.items() if kind != "box2d" or kind in inside]
    command = [sys.executable, str(script), *wanted]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == wanted


def _entry_points() -> dict[str, tuple[dict[str, str], list[str]]]:
    """The variables that make Python safe, and the command, of each image of the Dockerfile that
    has an entry point."""
    variables = dict[str, dict[str, str]]()
    found = dict[str, tuple[dict[str, str], list[str]]]()
    parent = ""
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if stage := re.match(r"FROM (\S+) AS (\S+)", line):
            parent = stage[2]
            variables[parent] = dict(variables.get(stage[1], {}))
        elif line.startswith("ENV "):
            variables[parent] |= {
                key: value for key, value in re.findall(r"(\w+)=(\S*)", line) if key[:6] == "PYTHON"
            }
        elif line.startswith("WORKDIR ") and parent in {
            *IMAGES,
            "pod",
            "learner",
            "worker",
            "evaluator",
            "policy",
        }:
            assert line == "WORKDIR /", "a folder that no process of the image may write to"
        elif line.startswith("ENTRYPOINT "):
            found[parent] = (variables[parent], json.loads(line.removeprefix("ENTRYPOINT ")))
    return found


@pytest.mark.parametrize(
    "image", ["orchestrator", "leaderboard", "learner", "worker", "evaluator", "policy"]
)
def test_no_entry_point_imports_what_user_code_left_in_its_folder(image, tmp_path):
    variables, (_python, *command) = _entry_points()[image]
    for module in ("grpc", "numpy", "yaml", "gmpy2", "logging"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('planted')")

    def start(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, *command, "--version"]
        return subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    assert "planted" in start(environment).stderr
    done = start(environment | variables)
    assert (done.returncode, done.stdout.split()[0]) == (0, f"podracer_{image}"), done.stderr[
        -3000:
    ]


@pytest.mark.parametrize("name", [*locked(), "torch", "torch-cuda"])
def test_a_lock_has_versions_and_hashes_of_all_that_an_image_needs(name):
    text = (ROOT / "constraints.txt").read_text()
    pins = {
        _normal(package): version
        for package, version in re.findall(r"^([\w-]+)==(.+)$", text, re.MULTILINE)
    }
    first, *lines = (ROOT / "deploy" / "images" / f"{name}.lock").read_text().splitlines()
    pinned = re.compile(r"[^#]+?( --hash=sha256:[0-9a-f]{64})+")
    assert all(map(pinned.fullmatch, lines)), "no hash: run `make locks`"
    wanted = [Requirement(line.split(" --hash")[0]) for line in lines]
    versions = {one.name: str(one.specifier) for one in wanted}
    assert versions == {one: f"=={pins.get(one)}" for one in versions}, (
        "other versions: run `make locks`"
    )

    here = {one.name for one in wanted if one.marker is None or one.marker.evaluate()}
    needed = _installed_by(locked().get(name, ["torch"])) - {"torch"}
    if name.startswith("torch"):
        assert f" torch=={pins['torch']}," in first, "another torch: run `make locks`"
        here, needed = (
            {one for one in names if not CUDA.match(one)} for names in (here, needed)
        )  # here it may have none
    if name != "pod-cuda" or platform.machine() == "x86_64":
        assert here == needed, "other packages: run `make locks`"


def test_every_package_of_an_image_is_pinned_by_hash():
    installs = re.findall(r"pip install (.+)", (ROOT / "Dockerfile").read_text())
    ours, torch = (one for one in installs if "--require-hashes --no-deps" not in one)
    assert ours.startswith("--no-deps --no-build-isolation --target")
    assert torch.startswith("--no-deps ") and torch.endswith('torch.lock)" \\')
