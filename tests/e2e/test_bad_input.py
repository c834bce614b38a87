"""Every mistake gives one clear message, exit code 2, and creates nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """
name: job
environment: {id: CartPole-v1}
objective: {target_return: 475, max_duration: 1m}
"""

BAD_FILES = {
    "unknown key": (GOOD + "objektive: 3\n", ["job.yaml:5", "objektive", "objective"]),
    "unknown nested key": (GOOD + "pod: {membrs: 2}\n", ["job.yaml:5", "pod.membrs", "members"]),
    "wrong type": (GOOD + "seed: many\n", ["job.yaml:5", "seed", "whole number"]),
    "impossible range": (
        GOOD + "search:\n  space:\n    gamma: {uniform: [0.99, 0.9]}\n",
        ["job.yaml:7", "search.space.gamma", "low < high"],
    ),
    "logarithm of zero": (
        GOOD + "search: {space: {learning_rate: {log_uniform: [0, 1]}}}\n",
        ["job.yaml:5", "search.space.learning_rate"],
    ),
    "unknown environment": (GOOD.replace("CartPole-v1", "CartPole-v7"), ["job.yaml:3", "CartPole-v7", "CartPole-v1"]),
    "unknown algorithm": (GOOD + "search: {algorithms: [ppq]}\n", ["job.yaml:5", "ppq", "ppo"]),
    "empty search": (GOOD + "search: {algorithms: []}\n", ["job.yaml:5", "search.algorithms", "empty"]),
    "population of none": (GOOD + "evolution: {population: 0}\n", ["job.yaml:5", "evolution.population"]),
    "no end": (GOOD.replace("{target_return: 475, max_duration: 1m}", "{}"), ["job.yaml:4", "objective"]),
    "missing key": ("name: job\n", ["environment", "objective"]),
    "not YAML": ("name: [\n", ["job.yaml:", "YAML"]),
    "twice": (GOOD + "name: other\n", ["job.yaml:5", "name"]),
    "empty file": ("", ["job.yaml", "nothing"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_job_file(case: str, run: Callable, tmp_path: Path) -> None:
    text, expected = BAD_FILES[case]
    (tmp_path / "job.yaml").write_text(text)
    command = run("run", "job.yaml", "--plain")
    assert command.process.returncode == 2, command.stderr
    for part in expected:
        assert part in command.stderr, command.stderr
    assert "Traceback" not in command.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_a_file_that_cannot_be_read(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "folder.yaml").mkdir()
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(100 << 20)
    for name in ("missing.yaml", "binary.yaml", "folder.yaml", "huge.yaml"):
        command = run("run", name, "--plain")
        assert command.process.returncode == 2
        assert name in command.stderr
        assert "Traceback" not in command.stderr
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    (tmp_path / "file").write_text("in the way")
    command = run("run", "job.yaml", "--plain", "--dir", tmp_path / "file" / "runs")
    assert command.process.returncode == 2
    assert str(tmp_path / "file") in command.stderr
    assert "Traceback" not in command.stderr
