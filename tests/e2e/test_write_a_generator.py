"""docs/write-a-generator.md: its example is a package that, once installed, decides in a job as any other generator."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from support.installed import write_metadata
from support.processes import EXAMPLES, ROOT

EXAMPLE = EXAMPLES / "generators" / "median_stopping"
PAGE = ROOT / "docs" / "write-a-generator.md"
SHOWN = {"pyproject.toml", "median_stopping/generator.py"}


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


def rows(database: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def test_the_page_shows_the_files_of_the_example() -> None:
    """In full those of SHOWN; of others an excerpt. Above each block stands the name of its file."""
    blocks = re.findall(r"`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == SHOWN | {"cartpole.yaml", "tests/test_median_stopping.py"}
    for name, text in blocks:
        file = (EXAMPLE / name).read_text()
        assert text == file if name in SHOWN else text in file, name


def test_a_job_is_run_by_it(run: Callable, example: Path, tmp_path: Path) -> None:
    command = run("run", example / "cartpole.yaml", "--json", timeout_s=200)
    assert command.process.returncode == 0, command.stderr
    assert command.events[-1]["state"] == "SUCCEEDED"
    agents = rows(tmp_path / "runs" / "leaderboard.sqlite", "SELECT origin, state, reason FROM agents ORDER BY number")
    assert {origin for origin, _, _ in agents} == {"fresh"}
    assert [reason for _, _, reason in agents[:4]] == ["there is room"] * 4
    assert "worse than the median of its rung" in [reason for _, _, reason in agents[4:]]
    problems = "SELECT message FROM events WHERE kind = 'GENERATOR_FAILED'"
    assert rows(tmp_path / "runs" / "orchestrator.sqlite", problems) == []


def test_one_that_breaks_does_not_stop_the_job_and_is_named(run: Callable, example: Path, tmp_path: Path) -> None:
    file = example / "median_stopping" / "generator.py"
    sound = "agent.score < median(peers)"
    assert sound in file.read_text()
    file.write_text(file.read_text().replace(sound, "agent.score < median(population)"))
    command = run("run", example / "cartpole.yaml", "--json", timeout_s=200)
    assert command.process.returncode == 0, command.stderr
    assert command.events[-1]["state"] == "SUCCEEDED"
    query = "SELECT message FROM events WHERE kind = 'GENERATOR_FAILED'"
    ((message,),) = rows(tmp_path / "runs" / "orchestrator.sqlite", query)
    assert message.startswith("generator median_stopping raised TypeError: 'Population' object is not iterable")
    assert message.endswith("; Tournament proposes in its place")


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("generator: median_stopping", "generator: median_stoping", "no generator 'median_stoping' is installed"),
        ("generator: median_stopping", "generator: [median_stopping]", "evolution.generator"),
    ],
)
def test_a_mistake_is_refused(run: Callable, example: Path, good: str, bad: str, message: str) -> None:
    job = example / "cartpole.yaml"
    text = job.read_text()
    assert good in text
    job.write_text(text.replace(good, bad))
    command = run("run", job, "--plain")
    assert command.process.returncode != 0
    assert message in command.stderr + "\n".join(command.lines)
    assert "Traceback" not in command.stderr


def test_a_package_that_cannot_be_imported_is_refused(run: Callable, example: Path) -> None:
    (example / "median_stopping" / "generator.py").write_text("import a_package_that_is_not_there\n")
    command = run("run", example / "cartpole.yaml", "--plain")
    assert command.process.returncode != 0
    expected = "median_stopping.generator:MedianStopping cannot be imported: ModuleNotFoundError"
    assert expected in command.stderr + "\n".join(command.lines)


def test_the_tests_that_it_brings_pass(example: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", example / "tests"]
    result = subprocess.run(command, cwd=example, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
