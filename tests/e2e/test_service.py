"""`podracer up`, and clients that come and go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_client import Client
from podracer_core.errors import NotFound
from support.commands import run_here
from support.processes import EXAMPLES, Command, wait_until
from tests.e2e.conftest import commands_in, start_up

pytestmark = pytest.mark.processes
SMALL = """
name: small
environment: {id: CartPole-v1}
objective: {max_env_steps: 2_048}
search: {algorithms: [ppo], space: {horizon: 32}}
evolution: {population: 1, leaderboard_size: 1, round: {env_steps: 2_048}}
pod: {count: 1, members: 1, envs_per_member: 16, layout: fused}
evaluation: {episodes: 8}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server that all tests here use."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Command]:
    with commands_in(folder) as start:
        yield start_up(start, folder)


@pytest.mark.usefixtures("server")
def test_plain_grpc_the_sdk_and_the_command_see_one_service(folder):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
    }
    client = subprocess.run(
        [sys.executable, EXAMPLES / "clients" / "python" / "submit_job.py", "30"],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert client.returncode == 0, client.stderr + client.stdout
    (manifest,) = folder.glob("best*/manifest.json")
    assert json.loads(manifest.read_text())

    (folder / "small.yaml").write_text(SMALL)
    with Client.connect(folder=folder / "runs") as sdk:
        job = sdk.submit(folder / "small.yaml")
        job.wait()
        assert job.leaderboard()
        job.download_best(folder / "sdk")
        with pytest.raises(NotFound):
            sdk.job("missing")
    assert (folder / "sdk" / "manifest.json").is_file()

    listed = run_here("jobs", "--json", cwd=folder)
    assert listed.returncode == 0, listed.stderr
    assert len(listed.events) == 2
    unknown = run_here("job", "missing", cwd=folder)
    assert unknown.returncode == 2
    assert "missing" in unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_a_port_that_another_podracer_has_is_one_message_with_a_way_out(server, folder, tmp_path):
    connection = json.loads((folder / "runs" / "connection.json").read_text())
    taken = (
        "--listen",
        connection["orchestrator"],
        "--leaderboard-listen",
        connection["leaderboard"],
    )
    refused = run_here("up", *taken, cwd=tmp_path)
    (orchestrator,) = server.services("podracer_orchestrator")
    assert refused.returncode == 2
    assert (
        f"process {orchestrator.pid}, the Podracer of {folder / 'runs'}; these are free: "
        in refused.stderr
    )
    assert re.search(
        r"--listen 127\.0\.0\.1:\d+ --leaderboard-listen 127\.0\.0\.1:\d+$", refused.stderr.strip()
    )
    assert list(tmp_path.iterdir()) == []


def test_cancel(server, folder):
    (folder / "long.yaml").write_text(
        "name: long\nenvironment: {id: Pendulum-v1}\nobjective: {max_duration: 1h}\npod: {layout: "
        "fused}\n"
    )
    with Client.connect(folder=folder / "runs") as sdk:
        job = sdk.submit(folder / "long.yaml")
        wait_until(lambda: job.refresh().state == "RUNNING", 60, "the job to run")
        assert run_here("cancel", job.name, cwd=folder).returncode == 0
        assert wait_until(lambda: job.refresh().state, 60, "the state") == "CANCELLED"
        wait_until(lambda: not server.services("podracer_learner"), 60, "its pods to go")
