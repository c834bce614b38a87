"""Packages that are not ours bring an algorithm, a generator, a fusion, an environment: found by
their entry points, and trained with by the services of one `podracer up`. The packages are the
examples of docs/write-a-*.md."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from podracer_client import Client
from podracer_client.jobs import Job
from support.examples import ALGORITHM, FUSION, GENERATOR, HOVER, MAZE, Packages
from tests.e2e.conftest import commands_in, start_up

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `podracer up` was called. Of what the user has there no service imports
    anything."""
    folder = tmp_path_factory.mktemp("extensions")
    write_modules_of_the_user(folder)
    return folder


def write_modules_of_the_user(folder: Path) -> None:
    for name in ("random", "json"):
        (folder / f"{name}.py").write_text("raise ImportError('a file of the user')\n")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    """Of the server that all tests here use; it began with all packages installed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        packages = Packages(folder / "packages", monkeypatch)
        for example in (ALGORITHM, GENERATOR, FUSION, MAZE):
            packages.install(example)
        packages.install_variant(
            GENERATOR, "generator", "odd_stopping", "median(peers)", "median(population)"
        )
        packages.install_variant(
            GENERATOR,
            "generator",
            "absent_stopping",
            "statistics import",
            "a_package_that_is_not_there import",
        )
        with commands_in(folder) as start:
            start_up(start, folder)
            with Client.connect(folder=folder / "runs") as client:
                yield client
        packages.forget()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """Where copies of examples' job files are made."""
    return tmp_path / "example"


def job_file(example: Path, name: str, *changes: tuple[str, str]) -> Path:
    """A job file, with other texts in some places."""
    text = (example / name).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (example / name).write_text(text)
    return example / name


def finished(client: Client, file: Path) -> Job:
    """The job of a file, once it has succeeded."""
    job = client.submit(file).wait()
    assert job.state == "SUCCEEDED", job.message.problem
    return job


def rows(folder: Path, service: str, query: str) -> list[tuple]:
    database = folder / "runs" / f"{service}.sqlite"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def agents_of(folder: Path, job: Job) -> list[tuple]:
    query = f"SELECT origin, reason FROM agents WHERE name LIKE '{job.name}/%' ORDER BY number"
    return rows(folder, "leaderboard", query)


def generator_problems(folder: Path, job: Job) -> list[str]:
    with Client.connect(folder=folder / "runs") as client:
        return [
            event.message for event in client.events(job.name) if event.kind == "GENERATOR_FAILED"
        ]


def test_an_algorithm(client, example):
    """In a split pod, where workers and evaluators have to know it too."""
    shutil.copytree(ALGORITHM, example)
    changes = [
        ("layout: fused", "layout: split"),
        ("max_env_steps: 2_000_000", "max_env_steps: 8_192"),
        ("round: {seconds: 30}", "round: {env_steps: 2_048}"),
        ("updates_per_step: 0.5", "updates_per_step: 0.05"),
        ("evaluation: {episodes: 32}", "evaluation: {episodes: 8}"),
    ]
    job = finished(client, job_file(example, "cartpole.yaml", *changes))
    assert job.progress.env_steps == 8_192
    assert job.progress.best.mean > 0


STOPPING = [
    ("max_env_steps: 196_608", "max_env_steps: 16_384"),
    ("round: {env_steps: 16_384}", "round: {env_steps: 2_048}"),
    ("envs_per_member: 32", "envs_per_member: 16"),
]


def test_a_generator(client, folder, example):
    shutil.copytree(GENERATOR, example)
    job = finished(client, job_file(example, "cartpole.yaml", *STOPPING))
    agents = agents_of(folder, job)
    assert {origin for origin, _ in agents} == {"fresh"}
    assert [reason for _, reason in agents[:4]] == ["there is room"] * 4
    assert "worse than the median of its rung" in [reason for _, reason in agents[4:]]
    assert generator_problems(folder, job) == []


def test_a_fusion(client, example):
    shutil.copytree(FUSION, example)
    changes = [
        ("max_env_steps: 196_608", "max_env_steps: 24_576"),
        ("round: {env_steps: 32_768}", "round: {env_steps: 12_288}"),
    ]
    job = finished(client, job_file(example, "cartpole.yaml", *changes))
    assert job.progress.env_steps >= 24_576


def test_an_environment(client, example):
    """By the id under which it is installed."""
    shutil.copytree(MAZE, example)
    changes = [
        ("max_duration: 3m", "max_env_steps: 4_096"),
        ("round: {seconds: 20}", "round: {env_steps: 2_048}"),
    ]
    job = finished(client, job_file(example, "installed.yaml", *changes))
    assert job.message.spec.environment.id == "Maze-v0"
    assert 0 < job.progress.env_steps <= 4_096


@pytest.mark.thorough
def test_an_algorithm_learns(client, example):
    """To a target between that of a random policy, 22, and that of the example, 475; judged more
    often than there."""
    shutil.copytree(ALGORITHM, example)
    changes = [
        ("target_return: 475", "target_return: 300"),
        ("round: {seconds: 30}", "round: {env_steps: 4_096}"),
        ("population: 4", "population: 2"),
        ("members: 4", "members: 2"),
    ]
    job = finished(client, job_file(example, "cartpole.yaml", *changes))
    assert job.progress.best.mean >= 300
    assert job.progress.HasField("time_to_target")


@pytest.mark.thorough
def test_a_package_folder_with_a_data_set_reaches_its_target_and_is_evaluated(
    run, example, tmp_path
):
    """By `podracer run`, which allows user code in fused pods; those of `podracer up` are split."""
    write_modules_of_the_user(tmp_path)
    shutil.copytree(MAZE, example)
    command = run(
        "run",
        job_file(example, "maze.yaml", ("pod: {members: 2", "pod: {layout: fused, members: 2")),
        "--json",
    )
    assert command.returncode == 0, command.stderr
    final = command.events[-1]
    assert final["state"] == "SUCCEEDED"
    assert final["best_return"] == pytest.approx(0.9)  # the shortest way
    artifacts = tmp_path / "runs" / "objects" / "projects" / "default" / "artifacts"
    assert len(list(artifacts.iterdir())) == 2
    evaluated = run("evaluate", tmp_path / final["checkpoint"], "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.events[-1]["largest_difference"] <= 1e-6


@pytest.mark.thorough
def test_an_environment_in_torch_reaches_its_target(client, example):
    shutil.copytree(HOVER, example)
    changes = [
        ("round: {seconds: 20}", "round: {env_steps: 16_384}"),
        ("population: 2", "population: 1"),
        ("members: 2", "members: 1"),
    ]
    job = finished(client, job_file(example, "hover.yaml", *changes))
    assert job.progress.best.mean >= 80
