"""A real S3 server process, on the loopback interface, over a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podracer_core.config import Secret
from podracer_core.storage.s3 import S3Settings

ACCESS_KEY, SECRET_KEY = "podracer", "correct-horse-battery"
START_TIMEOUT_S = 20.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the S3 server has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the S3 server does not listen")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Settings, Path]]:
    """Settings of a running server, and the folder in which it keeps its buckets."""
    binary = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    assert binary, "rclone is missing: install requirements-dev.txt"
    folder = tmp_path_factory.mktemp("s3")
    port = _free_port()
    command = [binary, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    environment = {**os.environ, "RCLONE_CONFIG": os.devnull}
    with (folder.parent / "s3.log").open("wb") as log:
        process = subprocess.Popen([*command, str(folder)], stdout=log, stderr=log, env=environment)
    try:
        _await_port(process, port)
        keys = {"access_key": Secret(ACCESS_KEY), "secret_key": Secret(SECRET_KEY)}
        yield S3Settings(f"http://127.0.0.1:{port}", **keys, attempts=2), folder
    finally:
        process.kill()
        process.wait()
