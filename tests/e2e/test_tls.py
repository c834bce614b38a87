"""Every hop speaks TLS: client, control plane and pod, each process with a certificate of its
own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_core.errors import PodracerError
from podracer_platform.rpc import open_channel
from support.deployment import Deployment
from support.processes import wait_until

pytestmark = pytest.mark.thorough
JOB = {
    "name": "tls",
    "environment": {"id": "CartPole-v1"},
    "objective": {"target_return": 100, "max_duration": "120s"},
    "search": {"algorithms": ["ppo"]},
    "evolution": {"population": 2, "round": {"seconds": 3}},
    "pod": {"count": 1, "layout": "split", "workers": 1, "envs_per_member": 16},
    "evaluation": {"episodes": 8},
}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, (tmp_path / "store").as_uri(), tls=True)
    try:
        deployment.start_leaderboard()
        deployment.start_orchestrator()
        deployment.start_split_pod("a")
        yield deployment
    finally:
        deployment.end_processes()


def test_a_job_is_trained_by_services_that_speak_only_tls(deployment, run, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    options = ["--orchestrator", deployment.addresses["orchestrator"]]
    options += ["--leaderboard", deployment.addresses["leaderboard"]]
    options += ["--token-file", str(deployment.secrets / "tokens" / "client")]
    command = run(
        "submit",
        "job.json",
        "--watch",
        "--json",
        *options,
        "--tls",
        str(deployment.secrets / "tls" / "client"),
    )
    assert command.returncode == 0, command.stderr
    assert any("SUCCEEDED" in line for line in command.lines)
    plain = run("jobs", *options)
    assert plain.returncode == 1
    assert "failed to connect" in plain.stderr
    for address in deployment.addresses.values():
        with open_channel(address, "token") as channel, pytest.raises(PodracerError):
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5.0)
    wait_until(
        lambda: "Traceback" not in "".join(map(deployment.log, deployment.addresses)),
        1.0,
        "clean logs",
    )
