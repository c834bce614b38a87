"""docs/write-an-algorithm.md: its example is a package that, once installed, runs in a job as any other algorithm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.installed import write_metadata
from support.processes import EXAMPLES, ROOT

EXAMPLE = EXAMPLES / "algorithms" / "munchausen_dqn"
PAGE = ROOT / "docs" / "write-an-algorithm.md"
SHOWN = {"pyproject.toml", "munchausen_dqn/catalogue.py", "munchausen_dqn/algorithm.py"}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, seen by every process that the test starts as if it were installed."""
    copy = tmp_path / "example"
    shutil.copytree(EXAMPLE, copy)
    project = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
    assert project["name"] == EXAMPLE.name.replace("_", "-")
    write_metadata(tmp_path / "site", project["name"], project["version"], project["entry-points"])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{copy}")
    return copy


def test_the_page_shows_the_files_of_the_example() -> None:
    """In full those of SHOWN; of others an excerpt. Above each block stands the name of its file."""
    blocks = re.findall(r"`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == SHOWN | {"cartpole.yaml", "tests/test_munchausen_dqn.py"}
    for name, text in blocks:
        file = (EXAMPLE / name).read_text()
        assert text == file if name in SHOWN else text in file, name


def test_it_is_listed(run: Callable, example: Path) -> None:
    command = run("algorithms")
    assert command.process.returncode == 0, command.stderr
    assert command.lines[-1].startswith("munchausen_dqn ")
    assert command.lines[-1].endswith("munchausen-dqn 0.1.0")
    assert not command.stderr
    shown = run("algorithms", "munchausen_dqn").lines
    assert "munchausen_weight: 0.9" in shown


def test_a_job_trains_it_to_its_target(run: Callable, example: Path) -> None:
    command = run("run", example / "cartpole.yaml", "--json", timeout_s=280)
    assert command.process.returncode == 0, command.stderr
    final = command.events[-1]
    assert final["state"] == "SUCCEEDED"
    assert final["best_return"] >= 475
    assert final["seconds_to_target"] is not None


def test_workers_and_evaluators_of_a_split_pod_know_it_too(run: Callable, example: Path) -> None:
    text = (example / "cartpole.yaml").read_text()
    assert "layout: fused" in text
    assert "max_env_steps: 2_000_000" in text
    text = text.replace("layout: fused", "layout: split").replace("max_env_steps: 2_000_000", "max_env_steps: 8_192")
    (example / "split.yaml").write_text(text.replace("round: {seconds: 30}", "round: {env_steps: 2_048}"))
    command = run("run", example / "split.yaml", "--json")
    assert command.process.returncode == 0, command.stderr
    assert command.events[-1]["state"] == "SUCCEEDED"
    assert command.events[-1]["env_steps"] == 8_192
    assert command.events[-1]["best_return"] > 0


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("munchausen_weight:", "munchhausen_weight:", "'munchhausen_weight'; did you mean munchausen_weight?"),
        ("uniform: [0.5, 0.9]", "uniform: [0.5, 1.9]", "munchausen_weight: must be a number from 0 to 1, not 1.9"),
        ("horizon: 16", "n_step: 3", "search.space.n_step: must be a whole number from 1 to 1, not 3"),
        ("[munchausen_dqn]", "[munchhausen_dqn]", "unknown algorithm 'munchhausen_dqn'; did you mean munchausen_dqn"),
    ],
)
def test_a_mistake_is_refused(run: Callable, example: Path, good: str, bad: str, message: str) -> None:
    job = example / "cartpole.yaml"
    text = job.read_text()
    assert good in text
    job.write_text(text.replace(good, bad))
    command = run("run", job, "--plain")
    assert command.process.returncode == 2
    assert message in command.stderr
    assert "cartpole.yaml:" in command.stderr
    assert "Traceback" not in command.stderr


def test_the_tests_that_it_brings_pass(example: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", example / "tests"]
    result = subprocess.run(command, cwd=example, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
