"""`podracer init`: the file is valid as it is written, for any environment, and nothing is
overwritten."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from podracer_client.command import job_files
from podracer_core.catalogue import known_environments
from podracer_platform.jobs import JobSpec, load_experiment
from support.commands import Result, run_here


def written(folder: Path, name: str, *arguments: object) -> JobSpec:
    result = run_here("init", *arguments, cwd=folder)
    assert (result.returncode, result.lines[0]) == (0, f"wrote {name}"), result.stderr
    (spec,) = load_experiment(folder / name).jobs
    return spec


def refused(folder: Path, *arguments: object) -> str:
    result: Result = run_here("init", *arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    return result.stderr


@pytest.mark.parametrize("name", [*known_environments(), "LunarLander-v3", "FrozenLake-v1"])
def test_every_environment_has_a_valid_file(name, tmp_path):
    (tmp_path / "prices.csv").touch()  # what StockTrading-v0 asks for
    spec = written(tmp_path, "job.yaml", "job.yaml", "--environment", name)
    assert (spec.environment.id, spec.objective.max_duration) == (name, 600.0)
    assert spec.evolution.ensemble_size == (4 if name == "StockTrading-v0" else 0)


def test_without_a_terminal_defaults_answer(tmp_path):
    spec = written(tmp_path, "cartpole.yaml")
    assert (spec.environment.id, spec.objective.target_return, spec.search.algorithms) == (
        "CartPole-v1",
        475.0,
        (),
    )
    assert (
        written(tmp_path, "pendulum.yaml", "--environment", "Pendulum-v1").objective.target_return
        is None
    )


def test_options(tmp_path):
    options = (
        "--target",
        "-200",
        "--max-duration",
        "90s",
        "--algorithm",
        "ppo",
        "--algorithm",
        "sac",
    )
    spec = written(tmp_path, "pendulum.yaml", "--environment", "Pendulum-v1", *options)
    assert (spec.objective.target_return, spec.objective.max_duration) == (-200.0, 90.0)
    assert [share.algorithm for share in spec.search.algorithms] == ["ppo", "sac"]
    assert written(tmp_path, "x.yaml", "x.yaml", "--target", "none").objective.target_return is None


def test_what_is_there_is_replaced_only_by_force(tmp_path):
    (tmp_path / "cartpole.yaml").write_text("mine")
    assert "cartpole.yaml already exists; --force replaces it" in refused(tmp_path)
    assert (tmp_path / "cartpole.yaml").read_text() == "mine"
    written(tmp_path, "cartpole.yaml", "--force")


def test_what_is_wrong_writes_nothing(tmp_path):
    assert "did you mean CartPole-v1" in refused(tmp_path, "--environment", "CartPol-v1")
    assert "--target much: expected a number, or none" in refused(tmp_path, "--target", "much")
    assert "expected a duration such as 90s" in refused(tmp_path, "--max-duration", "soon")
    assert "unknown algorithm" in refused(tmp_path, "--algorithm", "saac")
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_missing_are_said(tmp_path):
    result = run_here("init", "--environment", "StockTrading-v0", cwd=tmp_path)
    assert (result.returncode, "first, stocktrading.yaml:" in result.stdout) == (0, True)
    assert "prices.csv" in result.stdout


def test_a_terminal_is_asked_three_questions(monkeypatch, tmp_path):
    asked = []

    def answer(question: str, default: str, err: bool) -> str:
        asked.append((question.split(maxsplit=1)[0], default))
        return {"Environment": "Acrobot-v1", "Return": "-80", "How": "3m"}[
            question.split(maxsplit=1)[0]
        ]

    monkeypatch.setattr(job_files.typer, "prompt", answer)
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    monkeypatch.chdir(tmp_path)
    job_files.init()
    assert asked == [("Environment", "CartPole-v1"), ("Return", "-100"), ("How", "10m")]
    (spec,) = load_experiment(tmp_path / "acrobot.yaml").jobs
    assert (spec.objective.target_return, spec.objective.max_duration) == (-80.0, 180.0)
