"""A deployment with a mistake in it ends in one clear message and an exit status, never in a loop
without words."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podracer_platform.rpc import create_tokens
from support.deployment import Deployment
from support.s3_server import S3Server

pytestmark = pytest.mark.thorough
ENDS_WITHIN_S = 120
Attempt = Callable[..., str]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short: a unix socket's path has room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="bad-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[Deployment]:
    deployment = Deployment(folder, f"file://{folder}/store")
    try:
        deployment.start_leaderboard()
        deployment.start_orchestrator()
        yield deployment
    finally:
        deployment.end_processes()


@pytest.fixture(scope="module")
def s3(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder / "buckets")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def fail(deployment: Deployment) -> Attempt:
    """Start a process with these settings besides right ones; what it says in its last line,
    without its name."""

    def fail(role: str, path: Path | None = None, **settings: str) -> str:
        right = {
            "tokens": str(deployment.secrets / "tokens"),
            "orchestrator": deployment.addresses["orchestrator"],
            "leaderboard": deployment.addresses["leaderboard"],
            "store": deployment.common["store"],
            "database": f"sqlite:///{deployment.folder}/{secrets.token_hex(4)}.sqlite",
            "shm_dir": str(deployment.folder / "shm"),
            "pod": "projects/default/pods/bad",
        }
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")
        }
        environment |= {
            f"PODRACER_{key.upper()}": value for key, value in (right | settings).items()
        }
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        command = [sys.executable, "-m", f"podracer_{role}"]
        ended = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=ENDS_WITHIN_S,
            check=False,
        )
        assert ended.returncode in (1, 2), ended.stderr
        assert "Traceback" not in ended.stderr
        *_, last = ended.stderr.splitlines()
        assert last.startswith(f"podracer_{role}: "), ended.stderr
        return last.partition(": ")[2]

    return fail


@pytest.mark.parametrize("role", ["learner", "worker"])
def test_a_gpu_that_is_not_there(role, fail):
    assert "there is no device cuda:77 here: torch sees" in fail(role, device="cuda:77")


def test_a_pod_with_somebody_elses_token(fail, tmp_path):
    create_tokens(tmp_path / "tokens")
    assert "token" in fail("learner", tokens=str(tmp_path / "tokens"))


def test_a_pod_of_another_version(fail, tmp_path):
    metadata = tmp_path / "podracer_core-7.8.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: podracer-core\nVersion: 7.8.9\n")
    message = fail("learner", path=tmp_path)
    assert "7.8.9" in message
    assert "one minor version apart" in message


@pytest.mark.parametrize("role", ["orchestrator", "learner"])
def test_a_store_with_wrong_keys(role, fail, s3):
    settings = {
        "store": "s3://podracer",
        "s3_endpoint": s3.endpoint,
        "s3_access_key": "unknown",
        "s3_secret_key": "x" * 9,
    }
    assert "podracer" in fail(role, **settings)


@pytest.mark.parametrize("role", ["orchestrator", "leaderboard"])
def test_a_database_that_is_not_there(role, fail):
    assert "127.0.0.1" in fail(role, database="postgresql://podracer@127.0.0.1:9/orchestrator")


@pytest.mark.parametrize("role", ["orchestrator", "leaderboard", "learner", "worker", "evaluator"])
def test_secrets_that_are_not_there(role, fail, tmp_path):
    assert f"no token in {tmp_path}" in fail(role, tokens=str(tmp_path))
    assert str(tmp_path / "tls") in fail(role, tls=str(tmp_path / "tls"))
