"""docs/write-a-fusion.md: its example is a package that, once installed, fuses as any other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from podracer_core.errors import InvalidInput
from podracer_core.fusion.registry import fusion_class
from podracer_core.jobs.job_file import load_job_file
from support.installed import write_metadata
from support.processes import EXAMPLES, ROOT

EXAMPLE = EXAMPLES / "fusions" / "median_fusion"
PAGE = ROOT / "docs" / "write-a-fusion.md"
SHOWN = {"pyproject.toml", "median_fusion/fusion.py"}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, seen here and by every process that the test starts as if it were installed."""
    copy = tmp_path / "example"
    shutil.copytree(EXAMPLE, copy)
    project = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
    assert project["name"] == EXAMPLE.name.replace("_", "-")
    write_metadata(tmp_path / "site", project["name"], project["version"], project["entry-points"])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{copy}")
    monkeypatch.syspath_prepend(copy)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return copy


def test_the_page_shows_the_files_of_the_example() -> None:
    """In full those of SHOWN; of others an excerpt. Above each block stands the name of its file."""
    blocks = re.findall(r"`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == SHOWN | {"cartpole.yaml", "tests/test_median_fusion.py"}
    for name, text in blocks:
        file = (EXAMPLE / name).read_text()
        assert text == file if name in SHOWN else text in file, name


def test_it_is_found_by_its_name_and_so_are_the_built_in_ones(example: Path) -> None:
    found = {name: fusion_class(name).__name__ for name in ("median", "mean", "weighted", "outer")}
    assert found == {"median": "Median", "mean": "Mean", "weighted": "Weighted", "outer": "Outer"}
    with pytest.raises(InvalidInput, match="no fusion 'medain' is installed; there are: mean, median, outer, weighted"):
        fusion_class("medain")


def test_its_job_file_is_valid(example: Path) -> None:
    pod = load_job_file(example / "cartpole.yaml").pod
    assert pod.learners == 3
    assert pod.fusion is not None
    assert pod.fusion.name == "median"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import a_package_that_is_not_there\n", "cannot be imported: ModuleNotFoundError"),
        ("class Median:\n    pass\n", "is no podracer_core.fusion.fusion.Fusion"),
    ],
)
def test_a_package_that_is_broken_is_named(
    example: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    (example / "median_fusion" / "fusion.py").write_text(text)
    for name in ("median_fusion", "median_fusion.fusion"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InvalidInput, match=problem) as raised:
        fusion_class("median")
    assert "fusion 'median' of package median-fusion 0.1.0" in raised.value.message


def test_the_name_of_a_built_in_fusion_cannot_be_taken(example: Path, tmp_path: Path) -> None:
    entries = {"podracer.fusions": {"mean": "median_fusion.fusion:Median"}}
    write_metadata(tmp_path / "site", "another", "2.0", entries)
    with pytest.raises(InvalidInput, match=r"fusion 'mean' is offered by another 2.0, podracer-core .*; remove all"):
        fusion_class("mean")


def test_a_job_is_run_by_it(run: Callable, example: Path) -> None:
    command = run("run", example / "cartpole.yaml", "--json", timeout_s=240)
    assert command.process.returncode == 0, command.stderr
    assert command.events[-1]["state"] == "SUCCEEDED"


def test_the_tests_that_it_brings_pass(example: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", example / "tests"]
    result = subprocess.run(command, cwd=example, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
