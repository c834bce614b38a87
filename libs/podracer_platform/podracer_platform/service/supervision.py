"""A child process that is kept running: started again when it dies, ended with its session."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from podracer_platform.rpc import Backoff
from podracer_platform.service.lifetime import PARENT_VARIABLE

if TYPE_CHECKING:
    from podracer_platform.service.warm_start import WarmProcess

_STEADY_S = 20.0
"""A process that has run for this long had started well: its next restart waits a short time
again."""
_MAX_LOG_BYTES = 16 << 20
_TAIL_BYTES = 4000


End = int | OSError
"""How a process has ended: its return code (negative: the signal), or why it could not start."""


class SupervisedProcess:
    """Starts a process, starts it again when it dies, stops it.

    A thread of its own starts the process and lives as long as it does: on Linux the kernel ties a
    child that asked for it (`lifetime`) to the *thread* that started it."""

    def __init__(
        self,
        name: str,
        log: Path,
        launch: Callable[[IO[bytes]], subprocess.Popen[bytes] | WarmProcess],
        on_death: Callable[[End, int], bool],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """The functions are called from the process's thread.

        launch     starts the process in a session of its own; given its log, to which it appends
        on_death   whether to start it again, given how it has ended by itself, and how often in a
                   row it has done so early
        on_end     called once it has ended for good
        """
        self.name = name
        self._log = log
        self._launch, self._on_death, self._on_end = launch, on_death, on_end
        self._log_start = 0
        self._child: subprocess.Popen[bytes] | WarmProcess | None = None  # while it runs
        self._stopping = False
        self._after_s = 0.0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"process-{name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process id now, None between two starts."""
        child = self._child
        return child.pid if child is not None else None

    def start(self, after_s: float = 0.0) -> None:
        """Start it in `after_s` seconds. Returns at once."""
        self._after_s = after_s
        self._thread.start()

    def terminate(self) -> None:
        """Ask it to end, and do not restart it. Returns at once."""
        self._stopping = True
        if (child := self._child) is not None:
            child.terminate()
        self._wake.set()

    def restart(self) -> None:
        """End it and its session now; that is a death as any other. Returns at once."""
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError, PermissionError):
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:  # it has no session yet
                    os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it and its session now, and do not restart it. Returns at once; takes no lock, so
        that a signal handler may call it."""
        self._stopping = True
        self.restart()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended after at most `timeout_s`; only after `terminate` or `kill`."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def stop(self, grace_s: float) -> None:
        """Terminate it, and kill it if it still runs after `grace_s`."""
        self.terminate()
        if not self.join(grace_s):
            self.kill()
            self.join(1.0)

    def log_tail(self, *, of_all_runs: bool = False) -> str:
        """The end of what it has logged since its last start, or ever; empty if unreadable."""
        try:
            with self._log.open("rb") as log:
                start = 0 if of_all_runs else self._log_start
                log.seek(max(start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _is_stopping(self) -> bool:
        return self._stopping  # another thread sets it, at any time

    def _keep(self) -> None:
        backoff = Backoff(0.1, 5.0, jitter=0.5)
        early_deaths = 0
        self._wake.wait(self._after_s)
        try:
            while not self._is_stopping():
                started = time.monotonic()
                end = self._run_once()
                if time.monotonic() - started > _STEADY_S:
                    early_deaths = 0
                    backoff.reset()
                early_deaths += 1
                if self._is_stopping() or not self._on_death(end, early_deaths):
                    return
                self._wake.wait(next(backoff))
        finally:
            self._on_end()

    def _run_once(self) -> End:
        """Start it and wait until it ends; nothing of its session is left then."""
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            if self._log.exists() and self._log.stat().st_size > _MAX_LOG_BYTES:
                self._log.replace(self._log.with_suffix(".log.1"))
            with self._log.open("ab") as log:
                self._log_start = log.tell()
                child = self._child = self._launch(log)
        except OSError as error:
            return error
        if self._is_stopping():  # it was asked for while the process started
            child.terminate()
        code = child.wait()
        self._child = None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # children that it has left behind
        return code


def start_child(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | IO[Any], stderr: IO[Any]
) -> subprocess.Popen[bytes]:
    """Start a command without input, in a session of its own; a service ends with the thread that
    called this."""
    return subprocess.Popen(
        command,
        env={**environment, PARENT_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """`killed by SIGKILL`, `exit code 1`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
