"""An orchestrator whose object store is away when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from podracer_platform.rpc import create_tokens, health_of
from support.processes import wait_until
from support.s3_server import S3Server


@pytest.mark.processes
def test_it_says_what_it_waits_for_and_goes_on_once_that_is_there(tmp_path):
    create_tokens(tmp_path / "tokens")
    s3, log = S3Server(tmp_path / "buckets"), tmp_path / "log"
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")
    }
    # the path of a socket has to be short
    with tempfile.TemporaryDirectory() as folder, log.open("w") as errors:
        health = f"unix://{folder}/health"
        environment |= s3.variables | {
            "PODRACER_TOKENS": str(tmp_path / "tokens"),
            "PODRACER_DATABASE": f"sqlite:///{tmp_path}/orchestrator.sqlite",
            "PODRACER_STORE": "s3://podracer",
            "PODRACER_LEADERBOARD": "127.0.0.1:1",
            "PODRACER_HEALTH_LISTEN": health,
        }
        command = [sys.executable, "-m", "podracer_orchestrator"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on 127.0.0.1:")
            place = f"not ready: the object store: s3://podracer at {s3.endpoint} is away: "
            wait_until(lambda: place in log.read_text(), 60.0, "it says what it waits for")
            wait_until(lambda: health_of(health) == "NOT_SERVING", 60.0, "it is not ready")
            assert health_of(health, "liveness") == "SERVING"
            s3.start()
            wait_until(lambda: health_of(health) == "SERVING", 60.0, "it is ready")
            process.terminate()
            assert process.wait(60) == 0
            s3.stop()
