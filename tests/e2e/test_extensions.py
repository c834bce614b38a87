"""Packages that are not ours bring an algorithm, a generator, a fusion, an environment: found by
their entry points, and trained with by the services of one `podracer up`. The packages are the
examples of docs/write-a-*.md."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from podracer.orchestrator.v1 import artifact_service_pb2, job_service_pb2
from podracer_client import Client
from podracer_client.jobs.job import Job
from podracer_platform.jobs.job_file import load_job_file
from support.code import make_zip
from support.commands import run_here
from support.examples import ALGORITHM, FUSION, GENERATOR, HOVER, MAZE, Packages
from support.processes import EXAMPLES
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


def test_an_algorithm(client: Client, example: Path) -> None:
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


def test_a_generator(client: Client, folder: Path, example: Path) -> None:
    shutil.copytree(GENERATOR, example)
    job = finished(client, job_file(example, "cartpole.yaml", *STOPPING))
    agents = agents_of(folder, job)
    assert {origin for origin, _ in agents} == {"fresh"}
    assert [reason for _, reason in agents[:4]] == ["there is room"] * 4
    assert "worse than the median of its rung" in [reason for _, reason in agents[4:]]
    assert generator_problems(folder, job) == []


def test_a_fusion(client: Client, example: Path) -> None:
    shutil.copytree(FUSION, example)
    changes = [
        ("max_env_steps: 196_608", "max_env_steps: 24_576"),
        ("round: {env_steps: 32_768}", "round: {env_steps: 12_288}"),
    ]
    job = finished(client, job_file(example, "cartpole.yaml", *changes))
    assert job.progress.env_steps >= 24_576


def test_an_environment(client: Client, example: Path) -> None:
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
def test_an_algorithm_learns(client: Client, example: Path) -> None:
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
def test_a_generator_that_raises_does_not_stop_the_job_and_is_named(
    client: Client, folder: Path, example: Path
) -> None:
    shutil.copytree(GENERATOR, example)
    changes = [*STOPPING, ("generator: median_stopping", "generator: odd_stopping")]
    job = finished(client, job_file(example, "cartpole.yaml", *changes))
    (message,) = generator_problems(folder, job)
    assert message.startswith(
        "generator odd_stopping raised TypeError: 'Population' object is not iterable"
    )
    assert message.endswith("; Tournament proposes in its place")


@pytest.mark.usefixtures("client")
def test_a_generator_that_is_not_there_is_refused(folder: Path, example: Path) -> None:
    shutil.copytree(GENERATOR, example)
    file = job_file(
        example, "cartpole.yaml", ("generator: median_stopping", "generator: median_stoping")
    )
    submitted = run_here("submit", file, cwd=folder)
    assert submitted.returncode == 2
    assert "no generator 'median_stoping' is installed" in submitted.stderr
    assert "Traceback" not in submitted.stderr


def test_a_job_whose_generator_cannot_be_imported_fails(client: Client, example: Path) -> None:
    shutil.copytree(GENERATOR, example)
    change = ("generator: median_stopping", "generator: absent_stopping")
    job = client.submit(job_file(example, "cartpole.yaml", change)).wait()
    assert job.state == "FAILED"
    problem = "absent_stopping.generator:MedianStopping cannot be imported: ModuleNotFoundError"
    assert problem in job.message.problem.message


@pytest.mark.thorough
def test_a_package_folder_with_a_data_set_reaches_its_target_and_is_evaluated(
    run: Callable, example: Path, tmp_path: Path
) -> None:
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
def test_an_environment_in_torch_reaches_its_target(client: Client, example: Path) -> None:
    shutil.copytree(HOVER, example)
    changes = [
        ("round: {seconds: 20}", "round: {env_steps: 16_384}"),
        ("population: 2", "population: 1"),
        ("members: 2", "members: 1"),
    ]
    job = finished(client, job_file(example, "hover.yaml", *changes))
    assert job.progress.best.mean >= 80


@pytest.mark.thorough
def test_a_stock_table_of_ones_own(client: Client) -> None:
    job = finished(client, EXAMPLES / "stock_trading" / "job.yaml")
    assert job.progress.HasField("time_to_target")


@pytest.mark.thorough
def test_what_the_environment_itself_refuses_ends_the_job_with_its_own_words(
    client: Client, folder: Path, example: Path
) -> None:
    shutil.copytree(MAZE, example)
    (example / "plan.txt").write_text("S.\n..\n")
    job = client.submit(example / "maze.yaml").wait()
    assert job.state == "FAILED"
    assert agents_of(folder, job) == []
    problem = job.message.problem
    assert problem.message.startswith("maze.environment:Maze: ")
    assert "the plan needs one S and one G" in problem.message
    assert 'maze/environment.py", line' in problem.detail


@pytest.mark.thorough
@pytest.mark.usefixtures("client")
def test_code_that_cannot_be_imported_is_told(folder: Path, example: Path) -> None:
    shutil.copytree(MAZE, example)
    (example / "maze" / "environment.py").write_text("import mase\n")
    submitted = run_here("submit", example / "maze.yaml", cwd=folder)
    assert submitted.returncode == 0, submitted.stderr
    watched = run_here("watch", "".join(submitted.lines).split()[-1], cwd=folder)
    assert watched.returncode == 1
    assert "No module named 'mase'" in watched.stdout + watched.stderr


@pytest.mark.thorough
def test_an_archive_that_our_client_did_not_pack_is_refused(client: Client, folder: Path) -> None:
    packed = make_zip(("maze/environment.py", b""), ("../../../../outside.py", b"print('here')"))
    spec = (client.upload_files(load_job_file(MAZE / "maze.yaml"))).to_message()
    header = artifact_service_pb2.UploadHeader(
        kind=artifact_service_pb2.ARTIFACT_KIND_CODE,
        sha256=hashlib.sha256(packed).hexdigest(),
        size_bytes=len(packed),
    )
    requests = [
        artifact_service_pb2.UploadRequest(header=header),
        artifact_service_pb2.UploadRequest(data=packed),
    ]
    artifact = client.artifact_service.Upload(iter(requests)).artifact
    spec.environment.code.key, spec.environment.code.sha256 = artifact.uri, artifact.sha256
    spec.environment.code.size_bytes = artifact.size_bytes
    created = client.job_service.CreateJob(job_service_pb2.CreateJobRequest(spec=spec)).job
    problem = client.job(created.name).wait().message.problem
    assert problem.reason == "INVALID_CODE_ARCHIVE"
    assert "'../../../../outside.py' leads out of its folder" in problem.message
    assert not list(folder.rglob("outside.py"))
