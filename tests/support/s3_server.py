"""A real S3 server process, on the loopback interface, over a folder; it may be killed, frozen and
started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from urllib3.exceptions import HTTPError

from podracer_core.config import Secret
from podracer_platform.storage.s3 import S3Settings

ACCESS_KEY, SECRET_KEY = "podracer", "correct-horse-battery"
START_TIMEOUT_S = 60.0


def _minio(folder: Path, address: str, tls: Path | None) -> list[str]:
    certificates = folder.with_suffix(".certificates")
    certificates.mkdir(exist_ok=True)
    if tls is not None:
        shutil.copyfile(tls / "cert.pem", certificates / "public.crt")
        shutil.copyfile(tls / "key.pem", certificates / "private.key")
    return ["server", "--address", address, "--certs-dir", str(certificates), str(folder)]


def _versitygw(folder: Path, address: str, tls: Path | None) -> list[str]:
    certificates = (
        [] if tls is None else ["--cert", str(tls / "cert.pem"), "--key", str(tls / "key.pem")]
    )
    about = folder.parent / f"about-{folder.name}"  # not every file system has extended attributes
    about.mkdir(exist_ok=True)
    return ["--port", address, *certificates, "posix", "--sidecar", str(about), str(folder)]


def _rclone(folder: Path, address: str, tls: Path | None) -> list[str]:
    certificates = (
        [] if tls is None else ["--cert", str(tls / "cert.pem"), "--key", str(tls / "key.pem")]
    )
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    return ["serve", "s3", "--addr", address, "--auth-key", keys, *certificates, str(folder)]


def _moto(folder: Path, address: str, tls: Path | None) -> list[str]:
    host, _, port = address.partition(":")
    return ["--host", host, "--port", port]


@dataclass(frozen=True)
class Program:
    """An S3 server, as it is called and had: `arguments` takes the folder, the address and the
    folder of TLS files.

    keeps    objects outlive the process
    checks   it knows one key from another
    """

    command: str
    had_by: str
    arguments: Callable[[Path, str, Path | None], list[str]]
    keeps: bool = True
    checks: bool = True

    @property
    def path(self) -> str | None:
        """Where it is: beside our Python, or on PATH."""
        return shutil.which(self.command, path=str(Path(sys.executable).parent)) or shutil.which(
            self.command
        )


_VERSITYGW = "go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"
PROGRAMS: Mapping[str, Program] = {
    "minio": Program("minio", "cd deploy/minio && go install tool", _minio),
    "versitygw": Program("versitygw", _VERSITYGW, _versitygw),
    "rclone": Program("rclone", "make setup", _rclone),
    "moto": Program("moto_server", "make setup", _moto, keeps=False, checks=False),
}


def default_program() -> str:
    """What the project is made for, where it is on PATH."""
    return "minio" if PROGRAMS["minio"].path else "rclone"


def each_program(*names: str) -> list[Any]:
    """Parameters of a test: the first that is there in `make test`, the others in `make test-all`.

    What is not there is left out: tests/integration/storage/test_s3_servers.py says so once.
    """
    first, *others = (name for name in names if PROGRAMS[name].path)
    return [first, *(pytest.param(name, marks=pytest.mark.thorough) for name in others)]


class S3Server:
    """Keeps its buckets below `folder`, with a log beside it. `tls`: its cert.pem and key.pem."""

    def __init__(self, folder: Path, tls: Path | None = None, program: str = "") -> None:
        """`program`: one of PROGRAMS, else the default one."""
        self.program = PROGRAMS[program or default_program()]
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

    def start(self, *, wait: bool = True) -> None:
        """At the same port each time; `wait`: until it answers."""
        command = [
            str(self.program.path),
            *self.program.arguments(self.folder, f"127.0.0.1:{self._port}", self._tls),
        ]
        environment = os.environ | {
            "RCLONE_CONFIG": os.devnull,
            "MINIO_BROWSER": "off",
            "MINIO_CI_CD": "1",
        }
        environment |= {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
        environment |= {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        with self.folder.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        if wait:
            self._await_answer()

    def stop(self) -> None:
        """Kill it; nothing happens where it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It accepts connections and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _await_answer(self) -> None:
        assert self._process is not None
        authority = None if self._tls is None else str(self._tls / "ca.pem")
        http = urllib3.PoolManager(ca_certs=authority, retries=False)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.folder.with_suffix(".log").read_text()[-2000:]
            with contextlib.suppress(HTTPError, OSError):
                answer = http.request("GET", self.endpoint, timeout=2.0)
                if answer.status < 500:  # with any access rights
                    return
            time.sleep(0.05)
        raise TimeoutError("the S3 server does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
