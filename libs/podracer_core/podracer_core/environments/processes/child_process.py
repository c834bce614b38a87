"""Starts, calls and ends a process that runs user code. Its memory, its output and a crash do not
affect the parent.

The child gets a scrubbed environment, one end of a socket pair and the descriptor of the shared
memory. It ends with its parent. In Linux a `launcher` stands between: all that the child has
started ends with it, and a service's child is in a box (see `box`). Elsewhere the child ends when
its socket closes, and so does its process group.

A service keeps the end of what the child prints, and lets a bounded part into its own log."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from podracer_core.box import IN_BOX, box_for, launcher
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes.exchange import PROGRESS, Channel
from podracer_core.environments.processes.rows import (
    LONGEST_MESSAGE,
    LONGEST_TEXT,
    LONGEST_TRACEBACK,
)
from podracer_core.errors import InvalidInput, PodracerError, TimeUp, UserCodeFailed

KEPT_BYTES = 256 << 10
_LINES, _CHARACTERS = 20, 1_200
_LOG_BYTES, _LOG_BYTES_A_SECOND = 64 << 10, 1 << 10
_READ_BYTES, _READS = 64 << 10, 64
_PAUSE_S = 0.005  # a process that prints line by line would wake us with each
_DRAINING_S = 0.2
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\].*?(\x07|\x1b\\)|.)")


class ChildOutput:
    """The last KEPT_BYTES that the processes of a batch of environments have printed.

    is_kept  whether this process is a service; else all they print goes on to its stderr, and
             nothing is kept
    stderr   the descriptor to print to; None: this process's
    """

    is_kept = False

    def __init__(self) -> None:
        self._lock, self._kept = threading.Lock(), bytearray()
        self._pipe, self.stderr = -1, None
        if ChildOutput.is_kept:
            self._pipe, self.stderr = os.pipe()
            os.set_blocking(self._pipe, False)
            self._thread = threading.Thread(
                target=self._drain, name="environment-output", daemon=True
            )
            self._thread.start()

    def kept(self) -> bytes:
        """The end of the output."""
        self._take()
        return bytes(self._kept)

    def after(self, traceback: str) -> str:
        """`traceback` and the last lines of the output, without control characters."""
        lines = _ESCAPE.sub(
            "", self.kept()[-16 * _CHARACTERS :].decode(errors="replace")
        ).splitlines()
        lines = [
            "".join(each for each in line if each.isprintable() or each == "\t").rstrip()
            for line in lines
        ]
        text = "\n".join([line for line in lines if line][-_LINES:])[-_CHARACTERS:]
        return "\n".join(
            filter(None, (traceback, text and f"The last output of the environment:\n{text}\n"))
        )

    def close(self) -> None:
        """Close our end; what is printed is read on while a process that has the other end
        lives."""
        stderr, self.stderr = self.stderr, None
        if stderr is not None:
            os.close(stderr)
            self._thread.join(_DRAINING_S)

    def _drain(self) -> None:
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        while waiting.poll() and self._take():
            time.sleep(_PAUSE_S)
        with self._lock:
            os.close(self._pipe)
            self._pipe = -1

    def _take(self) -> bool:
        """Read what has been printed. False once nothing can follow."""
        with self._lock:
            for _ in range(_READS if self._pipe >= 0 else 0):
                try:
                    data = os.read(self._pipe, _READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    return False
                self._kept += data
                del self._kept[:-KEPT_BYTES]
                _log.write(data)
        return True


class _Log:
    """Writes whole lines to stderr, at most some bytes a second; the rest is left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = float(_LOG_BYTES)
        self._time = time.monotonic()
        self._is_told = False

    def write(self, data: bytes) -> None:
        with self._lock:
            now = time.monotonic()
            self._left = min(
                float(_LOG_BYTES), self._left + (now - self._time) * _LOG_BYTES_A_SECOND
            )
            self._time = now
            written = data[: int(self._left)]
            if len(written) < len(data):
                written = written[: written.rfind(b"\n") + 1]
            self._left -= len(written)
            if len(written) < len(data) and not self._is_told:
                written += b"(the environments print too much: this log has a part of it)\n"
                self._is_told = True
            with contextlib.suppress(OSError):
                os.write(2, written)


_log = _Log()


_MODULE = "podracer_core.environments.processes.preprocess_child"
_SECRET = re.compile(
    r"^(PODRACER|AWS|MINIO|KUBERNETES|OTEL)_|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY"
    r"|ACCESS_?KEY|_KEY$|DATABASE_URL|^KUBECONFIG$|^SSH_AUTH_SOCK$"
)
_HAS_LAUNCHER = sys.platform == "linux"
_NEEDED = {
    "open": ("observation_space", "action_space", "max_episode_steps"),
    "find_masks": ("mask_size",),
    **dict.fromkeys(("frame", "trace"), ("shape",)),
    **dict.fromkeys(("set_ages", "play_once"), ("possible",)),
}
"""By command, what its answer has to say. User code shares the socket with what answers, and may
have written."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "observation_space": dict, "action_space": dict, "max_episode_steps": (int, type(None)),
    "mask_size": int, "batched": bool, "deterministic_evaluation": bool, "frames_per_second": float,
    "start_s": float, "shape": list, "possible": bool, "warnings": list, "step_s": float,
    "waits": bool, "observation_origin": list, "made": int, "breaks": list, "error": dict,
}  # fmt: skip
_BREAK = {"row": int, "numbers": bool, "text": str, "traceback": str}
_ERROR = {"kind": str, "message": str, "traceback": str}
_CLOSING_S = 3.0
_ENDING_S = 10.0
_LOOK_S = 0.005
# how late we notice a death that the socket does not tell of, or that we wait no longer
_LOOK_AROUND_S = 0.2


class ChildLost(PodracerError):
    """The process died or did not answer in time; the message says which. It has ended."""

    reason = "CHILD_LOST"


class ChildProcess:
    """One process and the parent's end of its socket. `spec` is the environment that it is for;
    `spins` is `Channel`'s. `output` takes what it prints; `check` is called during long waits, and
    may raise."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        memory: int,
        output: ChildOutput,
        *,
        spins: bool,
        check: Callable[[], None],
    ) -> None:
        self._name, self._output, self._check = spec.name, output, check
        self._command, self._count = "", 0
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, spins=spins)
        read_end, write_end = os.pipe()
        self._lifeline = os.fdopen(write_end, "wb")
        inherited = [str(theirs.fileno()), str(memory)]
        command = [sys.executable, "-P", "-m", _MODULE, *inherited, str(int(spins))]
        environment = scrubbed_environment(os.environ)
        if _HAS_LAUNCHER:
            box = ("", "", "", "")
            if ChildOutput.is_kept:
                folder = tempfile.mkdtemp(prefix="podracer-box-")
                box = box_for(spec, folder)
                environment |= {"TMPDIR": folder, "HOME": folder, IN_BOX: "1"}
            script = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                launcher.START,
                str(Path(launcher.__file__).parent),
            ]
            command = [*script, str(read_end), ",".join(inherited), *box, *command]
        with theirs, os.fdopen(read_end, "rb"):
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(), memory, read_end),
                stdin=subprocess.DEVNULL,
                stderr=output.stderr,
                env=environment,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, command: str, payload: bytes = b"", **arguments: Any) -> None:
        """Send a command; `receive` returns its answer. "step" is the empty message."""
        if not self._channel.is_silent():
            raise self._interfered("more than one answer")
        self._command, self._count = command, arguments.get("count", 0)
        try:
            self._channel.send(
                {} if command == "step" else {"command": command, **arguments}, payload
            )
        except OSError as error:
            raise self._lost() from error

    def receive(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        """The answer to the last command, and its payload.

        Raises ChildLost if the process dies or `deadline` (of `time.monotonic`) passes, which kills
        it; UserCodeFailed or InvalidInput for an error in the user's code. With each environment
        that was made the time begins anew."""
        limit_s, made = deadline - time.monotonic(), 0
        while True:
            try:
                answer, payload = self._channel.receive(
                    min(deadline, time.monotonic() + _LOOK_AROUND_S)
                )
                if not answer and self._command not in _NEEDED:
                    return answer, payload
                _check_answer(answer, self._command)
                if PROGRESS not in answer:
                    break
                if not made < answer[PROGRESS] <= self._count:
                    raise ValueError(f"{answer[PROGRESS]} environments of {self._count}")
                self._check()
                deadline, made = time.monotonic() + limit_s, answer[PROGRESS]
            except TimeoutError:
                if self._has_ended():  # something that it had started holds the socket open
                    raise self._lost() from None
                if time.monotonic() >= deadline:
                    self.kill()
                    progress = f", after it had made {made} environments" if made else ""
                    raise ChildLost(
                        f"{self._name}: no answer to {self._command!r} in time{progress}"
                    ) from None
                self._check()
            except OSError as error:
                raise self._lost() from error
            except ValueError as error:
                raise self._interfered(error) from error
        if "error" in answer:
            raise self._failure(**answer["error"])
        return answer, payload

    def kill(self) -> None:
        """End the process and all that it has started at once."""
        self._channel.close()
        self._lifeline.close()
        try:
            self._process.wait(_ENDING_S if _HAS_LAUNCHER else 0)
        except subprocess.TimeoutExpired:
            # not reaped yet, so the group's number cannot be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @staticmethod
    def end_all(children: list[ChildProcess]) -> None:
        """End several processes in parallel: each has a few seconds, unless `check` raises
        TimeUp."""
        deadline = time.monotonic() + _CLOSING_S
        for child in children:
            child._channel.close()  # it ends then
        with contextlib.suppress(TimeUp):
            for child in children:
                child._has_ended_by(deadline)
        for child in children:
            child._lifeline.close()
        for child in children:
            child.kill()
        children.clear()

    def _has_ended_by(self, deadline: float) -> bool:
        """Whether the process ends until `deadline` (of `time.monotonic`)."""
        while not self._has_ended() and time.monotonic() < deadline:
            self._check()
            time.sleep(_LOOK_S)
        return self._has_ended()

    def _has_ended(self) -> bool:
        """Whether the process has ended, without reaping it."""
        if self._process.returncode is not None:
            return True
        try:
            return (
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                is not None
            )
        except ChildProcessError:  # the whole process ignores SIGCHLD
            return True

    def _lost(self) -> ChildLost:
        """The error for a closed socket."""
        ended = self._has_ended_by(time.monotonic() + _CLOSING_S)
        self.kill()
        if not ended:
            return ChildLost(
                f"{self._name}: the process closed its connection in {self._command!r}"
            )
        status = self._process.returncode
        how = (
            f"killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with status {status}"
        )
        advice = (
            ": the kernel does that to a process for which there is no memory"
            if status == -signal.SIGKILL
            else ""
        )
        return ChildLost(f"{self._name}: the process was {how} in {self._command!r}{advice}")

    def _interfered(self, what: object) -> ChildLost:
        """The error for something that no answer of ours says."""
        self.kill()
        message = f"the process wrote into its connection with us in {self._command!r}: {what}"
        return ChildLost(f"{self._name}: {message}"[:LONGEST_MESSAGE])

    def _failure(self, kind: str, message: str, traceback: str) -> PodracerError:
        message = f"{self._name}: {message}"[:LONGEST_MESSAGE]
        traceback = traceback[-LONGEST_TRACEBACK:]
        if kind == "invalid":
            return InvalidInput(message, environment=self._name)
        return UserCodeFailed(
            message, user_traceback=self._output.after(traceback), environment=self._name
        )


def _check_answer(answer: Mapping[str, Any], command: str) -> None:
    """Raises ValueError unless `answer` can be one to `command`."""
    needed = () if "error" in answer or PROGRESS in answer else _NEEDED.get(command, ())
    wrong = {name for name in needed if name not in answer}
    wrong |= {
        name for name, value in answer.items() if not isinstance(value, _KINDS.get(name, object))
    }
    if not wrong and "error" in answer and not _has_form(answer["error"], _ERROR):
        wrong.add("error")
    if not wrong and not all(
        _has_form(each, _BREAK) and len(each["text"]) <= LONGEST_TEXT
        for each in answer.get("breaks", ())
    ):
        wrong.add("breaks")
    if wrong:
        raise ValueError(f"an answer of another form: {sorted(wrong)}")


def _has_form(value: Any, form: Mapping[str, type]) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == form.keys()
        and all(isinstance(value[name], kind) for name, kind in form.items())
    )


def scrubbed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without Podracer's settings and variables named like secrets, and with those
    that a child needs.

    Numeric libraries get one thread each, unless it sets another number: several processes share
    the cores."""
    kept = {name: value for name, value in environment.items() if not _SECRET.search(name.upper())}
    ours = str(Path(__file__).resolve().parents[3])
    others = [
        path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours
    ]
    kept["PYTHONPATH"] = os.pathsep.join([ours, *others])
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    return threads | kept
