"""`podracer up`, and clients that come and go."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from podracer_client import Client
from podracer_core.errors import NotFound, Unauthenticated
from support.processes import EXAMPLES, Command, free_port, wait_until


@pytest.fixture
def up(podracer: Callable[..., Command], tmp_path: Path) -> Command:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    command = podracer("up", "--listen", ports[0], "--leaderboard-listen", ports[1])
    wait_until((tmp_path / "runs" / "connection.json").exists, 30, "the services")
    return command


def test_plain_grpc_the_sdk_and_the_command_see_one_service(
    up: Command, run: Callable[..., Command], tmp_path: Path
) -> None:
    assert len((EXAMPLES / "clients" / "submit_job.py").read_text().splitlines()) < 90
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")}
    client = subprocess.run(
        [sys.executable, EXAMPLES / "clients" / "submit_job.py"],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert client.returncode == 0, client.stderr + client.stdout
    (manifest,) = tmp_path.glob("**/best*/manifest.json")
    assert json.loads(manifest.read_text())

    with Client.connect(folder=tmp_path / "runs") as sdk:
        job = sdk.submit(EXAMPLES / "cartpole.yaml")
        job.wait()
        assert job.leaderboard()
        job.download_best(tmp_path / "sdk")
        with pytest.raises(NotFound):
            sdk.job("nobody")
    assert (tmp_path / "sdk" / "manifest.json").is_file()

    listed = run("jobs", "--json")
    assert listed.process.returncode == 0, listed.stderr
    assert len(listed.events) == 2
    unknown = run("job", "nobody")
    assert unknown.process.returncode == 2
    assert "nobody" in unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_a_wrong_token_is_refused(up: Command, tmp_path: Path) -> None:
    connection = json.loads((tmp_path / "runs" / "connection.json").read_text())
    orchestrator = connection["orchestrator"]
    with Client.connect(orchestrator=orchestrator, token="wrong") as sdk, pytest.raises(Unauthenticated):
        sdk.jobs()


def test_a_taken_port_is_one_message(run: Callable[..., Command], tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = run("up", "--listen", address, timeout_s=30)
    assert command.process.returncode == 2, command.stderr
    assert address in command.stderr
    assert "Traceback" not in command.stderr


def test_one_folder_one_service(up: Command, run: Callable[..., Command], tmp_path: Path) -> None:
    second = run("up", "--listen", f"127.0.0.1:{free_port()}", timeout_s=30)
    assert second.process.returncode == 2
    assert "runs" in second.stderr


def test_cancel(up: Command, run: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(
        "name: long\nenvironment: {id: Pendulum-v1}\nobjective: {max_duration: 1h}\npod: {layout: fused}\n"
    )
    with Client.connect(folder=tmp_path / "runs") as sdk:
        job = sdk.submit(tmp_path / "long.yaml")
        wait_until(lambda: job.refresh().state == "RUNNING", 60, "the job to run")
        assert run("cancel", job.name).process.returncode == 0
        assert wait_until(lambda: job.refresh().state, 5, "the state") == "CANCELLED"
        wait_until(lambda: not up.services("podracer_learner"), 15, "its pods to go")
