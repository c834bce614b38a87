"""Running `podracer` as a process of its own, and seeing what it started."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


class Command:
    """A running `podracer` command whose standard output is read line by line while it runs."""

    def __init__(self, arguments: list[str], folder: Path, **variables: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
        }
        environment |= variables
        # Its own, so that it shows no files of other tests; and beside the folder that tests look
        # into.
        self.shm = Path(tempfile.mkdtemp(prefix="podracer-shm-"))
        weakref.finalize(self, shutil.rmtree, self.shm, ignore_errors=True)
        environment["PODRACER_SHM_DIR"] = str(self.shm)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "podracer_client", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(
                target=self._read, args=(self.process.stdout, self.lines), daemon=True
            ),
            threading.Thread(
                target=self._read, args=(self.process.stderr, self.errors), daemon=True
            ),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        lines.extend(line.rstrip("\n") for line in stream)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON objects printed so far."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    @property
    def stderr(self) -> str:
        return "\n".join(self.errors)

    def services(self, module: str) -> list[psutil.Process]:
        """Living descendants that run `python -m <module>`."""
        found = []
        for process in descendants(self.process.pid):
            try:
                if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float) -> int:
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(60)
        return code


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_user_code(process_id: int) -> None:
    """Kill the child of a launcher, in which the user's code runs."""
    (child,) = psutil.Process(process_id).children()
    child.kill()


def wait_until(
    condition: Callable[[], Any], timeout_s: float = 120.0, what: str = "it", every_s: float = 0.05
) -> Any:
    """The first true answer of `condition`, asked every `every_s`; fails the test after
    `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(every_s)
    pytest.fail(f"waited {timeout_s} s for {what}")


async def until(condition: Callable[[], Any], what: str = "it", timeout_s: float = 120.0) -> Any:
    """The first true answer of `condition`, which may have to be awaited."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer := await answer if inspect.isawaitable(answer) else answer:
            return answer
        assert time.monotonic() < deadline, f"waited for {what}"
        await asyncio.sleep(0.02)
