"""Services as processes of their own: started by hand, killed, frozen and started again where they
were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from podracer_core.native import NATIVE_SETTINGS
from podracer_platform.service import warm_start

WITH_TORCH = ("learner", "worker", "evaluator", "policy")


class ForkedService:
    """A service forked by `warm_start`, with what these tests use of `subprocess.Popen`."""

    def __init__(self, role: str, environment: dict[str, str], log: IO[str]) -> None:
        reading, writing = os.pipe()
        self._process = warm_start.WarmProcess(
            f"podracer_{role}", environment, writing, log.fileno()
        )
        os.close(writing)
        self.pid = self._process.pid
        self.stdout: IO[str] | None = os.fdopen(reading)

    def poll(self) -> int | None:
        return self._process.returncode

    def wait(self, timeout: float) -> int:
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


Service = subprocess.Popen[str] | ForkedService


class ServiceProcesses:
    """Starts `python -m podracer_<role>` under names, keeps their addresses, and ends them all in
    `close`.

    folder   their logs; also unix sockets, so its path has to be short
    common   PODRACER_ variables of all of them, without the prefix and in small letters
    """

    def __init__(self, folder: Path, **common: str) -> None:
        self.folder, self.common = folder, common
        warm_start.start_server()
        self.processes: dict[str, Service] = {}
        self.addresses: dict[str, str] = {}

    def launch(self, role: str, name: str, **settings: str) -> Service:
        """Start a process and wait until it listens: at the address it had before, or at a socket
        of its name."""
        settings = (
            {"listen": self.addresses.get(name, f"unix://{self.folder}/{name}.sock")}
            | self.common
            | settings
        )
        if role in WITH_TORCH:
            settings = {"threads": "1"} | settings
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")
        }
        environment |= {f"PODRACER_{key.upper()}": value for key, value in settings.items()}
        environment = NATIVE_SETTINGS | environment | {"OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("a") as log:
            process = self._start(role, environment, log)
        if name in self.processes:
            self._forget(self.processes[name])
        self.processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), self.log(name)
        self.addresses[name] = line.removeprefix("listening on ").strip()
        return process

    @staticmethod
    def _start(role: str, environment: dict[str, str], log: IO[str]) -> Service:
        if role in WITH_TORCH and warm_start.is_running():
            return ForkedService(role, environment, log)
        command = [sys.executable, "-m", f"podracer_{role}"]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end_processes(self) -> None:
        """Kill all that are left."""
        for process in self.processes.values():
            self._forget(process)

    @staticmethod
    def _forget(process: Service) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
