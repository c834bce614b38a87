"""Services forked from a server: what they are given, what they end with, and a server that has one
thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import wait_until

SERVICE = """
import json, os, sys, threading
print(json.dumps({"pid": os.getpid(), "session": os.getsid(0), "arguments": sys.argv, "name": __name__,
                  "environment": dict(os.environ), "server": os.getppid(),
                  "server_threads": len(os.listdir(f"/proc/{os.getppid()}/task"))}), flush=True)
print("told on stderr", file=sys.stderr, flush=True)
end = sys.stdin.read()  # it is empty, and not the launcher's
sys.exit(int(os.environ["CODE"])) if "CODE" in os.environ else threading.Event().wait()
"""
LAUNCHER = """
import os, sys
from podracer_platform.service import warm_start
from podracer_core.errors import Unavailable

if sys.argv[2] == "light":
    warm_start._MODULES = ()
warm_start.start_server()
log = open(sys.argv[1], "ab")
for line in sys.stdin:
    variables = dict(word.split("=") for word in line.split())
    try:
        process = warm_start.WarmProcess("its_service", variables, log.fileno(), log.fileno())
        print(process.wait(60) if "CODE" in variables else process.pid, flush=True)
    except Unavailable as error:
        print(error.reason, warm_start.is_running(), flush=True)
"""
pytestmark = pytest.mark.processes


class Launcher:
    """A process with a fork server; `start` gives it the variables of a service."""

    def __init__(self, folder: Path, weight: str) -> None:
        (folder / "its_service.py").write_text(SERVICE)
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(self.log), weight],
            env=os.environ | {"PYTHONPATH": str(folder), "PODRACER_S3_SECRET_KEY": "hidden"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, **variables: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(
            " ".join(f"{name}={value}" for name, value in variables.items()) + "\n"
        )
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def told(self, count: int) -> list[dict[str, Any]]:
        """What its services say of themselves, once so many have."""

        def lines() -> list[str]:
            text = self.log.read_text() if self.log.exists() else ""
            return [line for line in text.splitlines() if line.startswith("{")]

        wait_until(lambda: len(lines()) >= count, 60, "the services")
        return [json.loads(line) for line in lines()]


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, getattr(request, "param", "light"))
    yield launcher
    launcher.process.kill()
    launcher.process.communicate()


def gone(*pids: int) -> bool:
    return not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


@pytest.mark.parametrize("launcher", ["with torch"], indirect=True)
def test_a_service_is_what_python_m_makes_of_it(launcher):
    assert launcher.start(CODE="7") == "7"
    pid = int(launcher.start(PODRACER_THREADS="1"))
    first, second = launcher.told(2)
    assert (first["environment"], first["name"], len(first["arguments"])) == (
        {"CODE": "7"},
        "__main__",
        1,
    )
    assert second["environment"] == {"PODRACER_THREADS": "1"}
    assert second["pid"] == second["session"] == pid
    assert "told on stderr" in launcher.log.read_text()
    assert psutil.Process(pid).cmdline()[1:4] == ["-P", "-m", "its_service"]
    assert [told["server_threads"] for told in (first, second)] == [1, 1], (
        "the server has one task before each fork"
    )
    server = psutil.Process(second["server"])
    assert (server.ppid(), first["server"]) == (launcher.process.pid, server.pid)
    variables = server.environ()
    assert not [
        name for name in variables if name.startswith("PODRACER_") and name != "PODRACER_PARENT_PID"
    ]
    assert variables["OPENBLAS_NUM_THREADS"] == "1"
    assert "torch" in Path(f"/proc/{server.pid}/maps").read_text()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_everything_ends_with_the_launcher(launcher, is_frozen):
    pid = int(launcher.start())
    (told,) = launcher.told(1)
    if is_frozen:
        os.kill(pid, signal.SIGSTOP)
    launcher.process.kill()
    wait_until(lambda: gone(pid, told["server"]), 60, "the service and the server to end")


def test_a_service_ends_with_its_server_and_no_further_one_is_started(launcher):
    pid = int(launcher.start())
    (told,) = launcher.told(1)
    os.kill(told["server"], signal.SIGKILL)
    wait_until(lambda: gone(pid), 60, "the service to end")
    assert launcher.start(CODE="0") == "NO_FORK_SERVER False"
