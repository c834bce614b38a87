"""Start, ask and end a process that runs user code. Its memory, its prints and its death are its own.

The child gets a scrubbed environment, one end of a socket pair and the descriptor of the shared memory. It dies with
us: by the kernel's parent-death signal where that works, and when its socket hangs up.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer_core.errors import InvalidInput, PodracerError, UserCodeFailed

__all__ = ["ChildLost", "ChildProcess", "scrubbed_environment"]

_MODULE = "podracer_core.environments.preprocess_child"
_SECRET = re.compile(r"^(PODRACER|AWS|MINIO|KUBERNETES|OTEL)_|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE|API_?KEY")
_CLOSING_S = 3.0


class ChildLost(PodracerError):
    """The process died or did not answer in time; the message says which, and it is gone now."""

    reason = "CHILD_LOST"


class ChildProcess:
    """One process and our end of its socket. `name` is the environment's, for messages."""

    def __init__(self, name: str, memory: int) -> None:
        self._name = name
        self._command = ""
        self._received = b""
        self._connection, theirs = socket.socketpair()
        # The kernel sends the parent-death signal when the starting thread ends, so only the main thread asks for it.
        die_with_thread = threading.current_thread() is threading.main_thread()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE]
                + [str(number) for number in (theirs.fileno(), memory, os.getpid(), int(die_with_thread))],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
                env=scrubbed_environment(os.environ),
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, command: str, **arguments: Any) -> None:
        """Begin a command; `receive` gives its answer."""
        self._command = command
        line = json.dumps({"command": command, **arguments}).encode() + b"\n"
        try:
            self._connection.sendall(line)
        except ConnectionError as error:
            raise self._lost() from error

    def receive(self, deadline: float) -> dict[str, Any]:
        """The answer to the last command.

        Raises ChildLost if the process dies or `deadline` (of `time.monotonic`) passes, which kills it; UserCodeFailed
        or InvalidInput if the user's code is to blame.
        """
        while b"\n" not in self._received:
            self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                part = self._connection.recv(1 << 16)
            except TimeoutError:
                self.kill()
                raise ChildLost(f"{self._name}: no answer to {self._command!r} in time") from None
            except ConnectionError as error:
                raise self._lost() from error
            if not part:
                raise self._lost()
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(**answer["error"])
        return answer

    def hang_up(self) -> None:
        """Ask the process to end."""
        self._connection.close()

    def end(self, deadline: float) -> None:
        """Hang up and wait for the process to end, until `deadline` (of `time.monotonic`); then kill it."""
        self.hang_up()
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self.hang_up()
        self._process.kill()
        self._process.wait()

    @staticmethod
    def end_all(children: list[ChildProcess]) -> None:
        """End them together: each has the time to clean up, none more than a few seconds."""
        deadline = time.monotonic() + _CLOSING_S
        for child in children:
            child.hang_up()
        for child in children:
            child.end(deadline)
        children.clear()

    def _lost(self) -> ChildLost:
        """Why the socket hung up."""
        try:
            status = self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return ChildLost(f"{self._name}: the process closed its connection in {self._command!r}")
        self.hang_up()
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return ChildLost(f"{self._name}: the process was {how} in {self._command!r}")

    def _failure(self, kind: str, message: str, traceback: str) -> PodracerError:
        message = f"{self._name}: {message}"
        if kind == "invalid":
            return InvalidInput(message, environment=self._name)
        return UserCodeFailed(message, user_traceback=traceback, environment=self._name)


def scrubbed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without our own settings and whatever is named like a secret, and with what a child needs.

    Numeric libraries get one thread each, unless it says otherwise: several processes share the cores.
    """
    kept = {name: value for name, value in environment.items() if not _SECRET.search(name.upper())}
    ours = str(Path(__file__).resolve().parents[2])
    others = [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours]
    kept["PYTHONPATH"] = os.pathsep.join([ours, *others])
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    return threads | kept
