"""One process of a pod, in a session of its own, with its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from podracer_core.errors import Unavailable
from podracer_core.service import warm_start
from podracer_core.service.lifetime import PARENT_VARIABLE

TAIL_BYTES = 4000
_MAX_LOG_BYTES = 16 << 20


class PodProcess:
    """`python -m <module>`: started by `start`, ended by `terminate` or by itself.

    Where this process has a fork server it is forked from that, unless it has GPUs of its own: CUDA's libraries are
    then loaded with the devices that it may see.
    """

    def __init__(self, module: str, environment: Mapping[str, str], log: Path, *, has_gpus: bool = False) -> None:
        self._module = module
        self._environment = environment
        self._log = log
        self._has_gpus = has_gpus
        self._process: asyncio.subprocess.Process | warm_start.WarmProcess | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None before it was started."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it. It dies with this process, however this one ends.

        Raises OSError where the log cannot be written or the system has no room for a process.
        """
        if self._log.exists() and self._log.stat().st_size > _MAX_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("ab") as log:
            if warm_start.is_running() and not self._has_gpus:
                with contextlib.suppress(Unavailable):
                    self._process = await asyncio.to_thread(
                        warm_start.WarmProcess, self._module, self._environment, log.fileno(), log.fileno()
                    )
                    return
            environment = {**self._environment, PARENT_VARIABLE: str(os.getpid())}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module,
                env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def wait(self) -> int:
        """Wait for its end; a negative number is the signal that ended it. Nothing of its session is left then."""
        assert self._process is not None, "it is waited for after it has been started"
        code = await self._process.wait()
        self._signal_session(signal.SIGKILL)  # children that it has left behind
        return code

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End it and its children at once."""
        if self._process is not None and self._process.returncode is None:
            self._signal_session(signal.SIGKILL)

    def log_tail(self) -> str:
        """The end of its log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def _signal_session(self, number: signal.Signals) -> None:
        assert self._process is not None, "only of a process that was started"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:  # it has no session yet
                if self._process.returncode is None:
                    os.kill(self._process.pid, number)


def describe_exit(code: int) -> str:
    """`was killed by SIGKILL`, `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
