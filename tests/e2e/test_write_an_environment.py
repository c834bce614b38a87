"""docs/write-an-environment.md: its examples train to their targets, from the command line, with nothing installed."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from podracer.orchestrator.v1 import artifact_service_pb2, job_service_pb2
from podracer_client import Client
from podracer_core.jobs.job_file import load_job_file
from podracer_core.jobs.messages import spec_to_message
from support.code import make_zip
from support.installed import write_metadata
from support.processes import EXAMPLES, ROOT, wait_until

FOLDER = EXAMPLES / "environments"
MAZE, HOVER = FOLDER / "maze", FOLDER / "hover"
PAGE = ROOT / "docs" / "write-an-environment.md"
SHOWN = {
    "maze/environment.py": MAZE,
    "maze.yaml": MAZE,
    "pyproject.toml": MAZE,
    "hover/environment.py": HOVER,
    "hover.yaml": HOVER,
}
IN_PART = {"installed.yaml": MAZE, "tests/test_maze.py": MAZE}


@pytest.fixture
def maze(tmp_path: Path) -> Path:
    """A copy of the example."""
    return shutil.copytree(MAZE, tmp_path / "example")


def test_the_page_shows_the_files_of_the_examples() -> None:
    """In full those of SHOWN, of others an excerpt. Above each block stands the name of its file."""
    blocks = re.findall(r"`([\w./]+)`[^\n]*\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == SHOWN.keys() | IN_PART.keys()
    for name, text in blocks:
        file = ((SHOWN | IN_PART)[name] / name).read_text()
        assert text == file if name in SHOWN else text in file, name


def test_a_package_folder_with_a_data_set_reaches_its_target_and_is_evaluated(
    run: Callable, maze: Path, tmp_path: Path
) -> None:
    """In a fused pod, where `podracer run` allows user code; the other examples run in split ones. Of the folder in
    which the command is called no service imports anything."""
    for name in ("random", "json"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of the user')\n")
    text = (maze / "maze.yaml").read_text()
    assert "pod: {members: 2" in text
    (maze / "maze.yaml").write_text(text.replace("pod: {members: 2", "pod: {layout: fused, members: 2"))
    command = run("run", maze / "maze.yaml", "--json")
    assert command.process.returncode == 0, command.stderr
    final = command.events[-1]
    assert final["state"] == "SUCCEEDED"
    assert final["best_return"] == pytest.approx(0.9)  # the shortest way
    artifacts = list((tmp_path / "runs" / "objects" / "projects" / "default" / "artifacts").iterdir())
    assert len(artifacts) == 2

    evaluated = run("evaluate", tmp_path / final["checkpoint"], "--json")
    assert evaluated.process.returncode == 0, evaluated.stderr
    assert evaluated.events[-1]["largest_difference"] <= 1e-6


def test_an_environment_in_torch_reaches_its_target(run: Callable) -> None:
    command = run("run", HOVER / "hover.yaml", "--json")
    assert command.process.returncode == 0, command.stderr
    final = command.events[-1]
    assert final["state"] == "SUCCEEDED"
    assert final["best_return"] >= 80


def test_an_installed_package_goes_by_its_id(
    run: Callable, maze: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((maze / "pyproject.toml").read_text())["project"]
    write_metadata(tmp_path / "site", project["name"], project["version"], project["entry-points"])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{maze}")
    command = run("run", maze / "installed.yaml", "--json")
    assert command.process.returncode == 0, command.stderr
    assert command.events[-1]["best_return"] == pytest.approx(0.9)


def test_a_stock_table_of_ones_own(run: Callable) -> None:
    command = run("run", EXAMPLES / "stock_trading" / "job.yaml", "--json")
    assert command.process.returncode == 0, command.stderr
    final = command.events[-1]
    assert final["state"] == "SUCCEEDED"
    assert final["seconds_to_target"] is not None


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("code: ./maze ", "code: ./mase ", "maze.yaml:4: environment.code: expected a folder; there is none at "),
        (
            "code: ./maze ",
            "code: ./tests ",
            "does not hold the module maze of maze.environment:Maze: expected maze/ or",
        ),
        ("./plan.txt", "./plain.txt", "maze.yaml:6: data.plan: expected a file; there is nothing at "),
        ("data: {plan: ", "data: {a plan: ", "data.a plan: is not the name of an argument"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_made(
    run: Callable, maze: Path, tmp_path: Path, good: str, bad: str, message: str
) -> None:
    text = (maze / "maze.yaml").read_text()
    assert good in text
    (maze / "maze.yaml").write_text(text.replace(good, bad))
    command = run("run", maze / "maze.yaml", "--plain")
    assert command.process.returncode == 2
    assert message in command.stderr
    assert "Traceback" not in command.stderr
    assert not (tmp_path / "runs").exists()


def test_what_the_environment_itself_refuses_ends_the_job_with_its_own_words(run: Callable, maze: Path) -> None:
    (maze / "plan.txt").write_text("S.\n..\n")
    command = run("run", maze / "maze.yaml", "--json")
    assert command.process.returncode == 1
    assert command.events[-1]["state"] == "FAILED"
    assert command.events[-1]["agents"] == 0
    for message in ("maze.environment:Maze: ", "the plan needs one S and one G", 'maze/environment.py", line'):
        assert message in command.stderr


def test_a_server_says_what_is_wrong_with_code(podracer: Callable, run: Callable, maze: Path, tmp_path: Path) -> None:
    """With that of `podracer submit`, and with that of whoever does not pack with our client."""
    podracer("up", "--listen", "127.0.0.1:0", "--leaderboard-listen", "localhost:0")
    wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
    broken = shutil.copytree(maze, tmp_path / "broken")
    (broken / "maze" / "environment.py").write_text("import mase\n")
    submitted = run("submit", broken / "maze.yaml")
    assert submitted.process.returncode == 0, submitted.stderr
    watched = run("watch", "".join(submitted.lines).split()[-1])
    assert watched.process.returncode == 1
    assert "No module named 'mase'" in "".join(watched.lines) + watched.stderr

    packed = make_zip(("maze/environment.py", b""), ("../../../../outside.py", b"print('here')"))
    with Client.connect(folder=tmp_path / "runs") as client:
        spec = spec_to_message(client.upload_files(load_job_file(maze / "maze.yaml")))
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
        job = client.job(created.name).wait().message
    assert job.problem.reason == "INVALID_CODE_ARCHIVE"
    assert "'../../../../outside.py' leads out of its folder" in job.problem.message
    assert not list(tmp_path.rglob("outside.py"))


def test_the_tests_that_they_bring_pass(tmp_path: Path) -> None:
    copies = [shutil.copytree(example, tmp_path / example.name) for example in (MAZE, HOVER)]
    folders = [copy / "tests" for copy in copies]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders]
    environment = {"PYTHONPATH": ":".join(map(str, copies))}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
