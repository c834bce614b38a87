"""A real PostgreSQL server in a folder of its own; it may be killed and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

_START_S = 30.0


class PostgresServer:
    """Listens on loopback; user `podracer`, no password."""

    def __init__(self, folder: Path, tls: Path | None = None) -> None:
        """`folder` is made; other users than root need to get to it: PostgreSQL refuses to run as
        root. With `tls`, a folder with cert.pem and key.pem, it also speaks TLS."""
        found = _binaries()
        if found is None:
            pytest.skip("PostgreSQL is not installed")
        self._binaries, self.folder, self._data = found, folder, folder / "data"
        self._user = _plain_user()
        folder.mkdir(parents=True)
        shutil.chown(folder, *self._user) if self._user else None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._log = folder / "log"
        self._options = ["listen_addresses=127.0.0.1", "unix_socket_directories="]
        # Dynamic shared memory as files of its own folder: /dev/shm would keep what a killed server
        # has there.
        self._options += ["dynamic_shared_memory_type=mmap"]
        for name in ("cert", "key") if tls else ():
            own = shutil.copy(tls / f"{name}.pem", folder)  # with its mode
            shutil.chown(own, *self._user) if self._user else None
            self._options += [f"ssl_{name}_file={own}", "ssl=on"]
        self._process: subprocess.Popen[bytes] | None = None
        command = [
            "initdb",
            "-D",
            str(self._data),
            "-U",
            "podracer",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        ]
        subprocess.run(self._as_user(command), check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        command = ["postgres", "-D", str(self._data), "-p", str(self._port)]
        command += [word for option in self._options for word in ("-c", option)]
        deadline = time.monotonic() + _START_S
        ready = self._as_user(["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self._port)])
        while self._process is None or subprocess.run(ready, check=False).returncode:
            assert time.monotonic() < deadline, self._log.read_text()
            # a child of one that was killed still lives
            if self._process is None or self._process.poll() is not None:
                with self._log.open("ab") as log:
                    self._process = subprocess.Popen(self._as_user(command), stdout=log, stderr=log)
            time.sleep(0.1)

    def kill(self) -> None:
        """All of its processes at once, as a power cut would."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It accepts connections and does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        own = subprocess.run(
            ["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False
        )
        for pid in [self._process.pid, *map(int, own.stdout.split())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def create_database(self, name: str) -> str:
        """Its URL."""
        address = ["-h", "127.0.0.1", "-p", str(self._port), "-U", "podracer"]
        subprocess.run(self._as_user(["createdb", *address, name]), check=True)
        return f"postgresql://podracer@127.0.0.1:{self._port}/{name}"

    def _as_user(self, command: list[str]) -> list[str]:
        command = [str(self._binaries / command[0]), *command[1:]]
        if self._user is None:
            return command
        user, group = self._user
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]


def _binaries() -> Path | None:
    """The folder with initdb; Debian does not have it on the path."""
    places = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists()), None)


def _plain_user() -> tuple[int, int] | None:
    """User and group to run as; None where this is no root."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    return None
