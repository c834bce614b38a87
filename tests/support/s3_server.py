"""A real S3 server process, on the loopback interface, over a folder; it may be killed, frozen and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from podracer_core.config import Secret
from podracer_core.storage.s3 import S3Settings

ACCESS_KEY, SECRET_KEY = "podracer", "correct-horse-battery"
START_TIMEOUT_S = 20.0


class S3Server:
    """Keeps its buckets as folders in `folder`, with a log beside it. `tls`: its cert.pem and key.pem."""

    def __init__(self, folder: Path, tls: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._tls = folder, tls
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def settings(self) -> S3Settings:
        """Two attempts, so that errors come soon."""
        keys = {"access_key": Secret(ACCESS_KEY), "secret_key": Secret(SECRET_KEY)}
        return S3Settings(self.endpoint, **keys, attempts=2)

    @property
    def variables(self) -> dict[str, str]:
        """The same for a process."""
        return {
            "PODRACER_S3_ENDPOINT": self.endpoint,
            "PODRACER_S3_ACCESS_KEY": ACCESS_KEY,
            "PODRACER_S3_SECRET_KEY": SECRET_KEY,
        }

    def start(self) -> None:
        """At the same port each time."""
        binary = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
        assert binary, "rclone is missing: install requirements-dev.txt"
        address = self.endpoint.partition("://")[2]
        command = [binary, "serve", "s3", "--addr", address, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
        if self._tls is not None:
            command += ["--cert", str(self._tls / "cert.pem"), "--key", str(self._tls / "key.pem")]
        environment = {**os.environ, "RCLONE_CONFIG": os.devnull}
        with self.folder.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen([*command, str(self.folder)], stdout=log, stderr=log, env=environment)
        self._await_port()

    def stop(self) -> None:
        """Kill it; nothing happens where it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes connections and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _await_port(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "the S3 server has ended"
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("the S3 server does not listen")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
