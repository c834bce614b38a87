"""Services as processes of their own: started by hand, killed, frozen and started again where they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from podracer_core.native_settings import NATIVE_SETTINGS


class ServiceProcesses:
    """Starts `python -m podracer_<role>` under names, keeps their addresses, and ends them all in `close`.

    folder   their logs; also unix sockets, so its path has to be short
    common   PODRACER_ variables of all of them, without the prefix and in small letters
    """

    def __init__(self, folder: Path, **common: str) -> None:
        self.folder, self.common = folder, common
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}

    def launch(self, role: str, name: str, **settings: str) -> subprocess.Popen[str]:
        """Start a process and wait until it listens: at the address it had before, or at a socket of its name."""
        settings = {"listen": self.addresses.get(name, f"unix://{self.folder}/{name}.sock")} | self.common | settings
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PODRACER_")}
        environment |= {f"PODRACER_{key.upper()}": value for key, value in settings.items()}
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"podracer_{role}"],
                env=NATIVE_SETTINGS | environment | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        if name in self.processes:
            self._forget(self.processes[name])
        self.processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), self.log(name)
        self.addresses[name] = line.removeprefix("listening on ").strip()
        return process

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end_processes(self) -> None:
        """Kill whoever is left."""
        for process in self.processes.values():
            self._forget(process)

    @staticmethod
    def _forget(process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
