"""One local pod: a learner, and in the split layout its workers and its evaluator, each restarted
when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from podracer_core.errors import Unavailable
from podracer_orchestrator.pool.backend import PodObserver
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.service import warm_start
from podracer_platform.service.lifetime import PARENT_VARIABLE

logger = logging.getLogger(__name__)

LEARNER = "learner"
LEARNER_GRACE_S = 3.0
"""How long a learner has to finish its update, commit and hand its lease back."""
STOP_GRACE_S = 3.4
"""How long all processes have to end; Ctrl-C must end everything within 5 s."""
DRAIN_GRACE_S = 30.0
"""How long the learner of a surplus pod has to end: no user waits for it, and it can finish a long
update."""
_STEADY_S = 20.0
"""A process that has run for this long had started well: the wait before its next restart is short
again."""
TAIL_BYTES = 4000
_MAX_LOG_BYTES = 16 << 20


class LocalPod:
    """Keeps the processes of a pod running until `stop`."""

    def __init__(
        self, name: str, processes: Mapping[str, PodProcess], observer: PodObserver
    ) -> None:
        """`processes` by role: `learner`, `worker0`, …, `evaluator`."""
        self.name = name
        self._processes = processes
        self._observer = observer
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._deadline = math.inf  # once it is hurried
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start all processes in parallel; they find each other by their sockets."""
        for role, process in self._processes.items():
            self._keepers[role] = asyncio.create_task(
                self._keep(role, process), name=f"{self.name}-{role}"
            )

    def kill_learner(self) -> None:
        """End the learner at once; it is restarted."""
        self._processes[LEARNER].kill()

    @property
    def sessions(self) -> Sequence[int]:
        """The sessions that its processes run in."""
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def hurry(self) -> None:
        """Have no more patience than Ctrl-C allows, also where it is draining already."""
        if not self._hurried.is_set():
            self._deadline = asyncio.get_running_loop().time() + STOP_GRACE_S
            self._hurried.set()

    async def stop(self) -> None:
        """The learner first, while its workers still answer; then the others. By force after the
        grace."""
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop())
        await asyncio.shield(self._stop_task)

    async def _stop(self) -> None:
        self._stopping.set()
        await self._end(LEARNER, DRAIN_GRACE_S, STOP_GRACE_S - LEARNER_GRACE_S)
        await asyncio.gather(
            *(self._end(role, STOP_GRACE_S, 0.0) for role in self._processes if role != LEARNER)
        )

    async def _end(self, role: str, grace_s: float, reserve_s: float) -> None:
        """`reserve_s`: what a hurried end leaves of its time to the processes that are ended
        afterwards."""
        keeper, process = self._keepers[role], self._processes[role]
        begun = asyncio.get_running_loop().time()
        process.terminate()
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait([keeper, hurried], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not keeper.done() and self._hurried.is_set():
            left_s = self._deadline - reserve_s - asyncio.get_running_loop().time()
            await asyncio.wait([keeper], timeout=max(0.0, left_s))
        if not keeper.done():
            took_s = asyncio.get_running_loop().time() - begun
            logger.warning("%s of %s did not end within %.1f s: killed", role, self.name, took_s)
            process.kill()
            await asyncio.wait([keeper], timeout=1.0)
        keeper.cancel()

    async def _keep(self, role: str, process: PodProcess) -> None:
        backoff = Backoff(0.2, 5.0, jitter=0.5)
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            try:
                await process.start()
                # it was asked to stop before there was anything to terminate
                if self._stopping.is_set():
                    process.terminate()
                why = f"the {role} {describe_exit(await process.wait())}"
            except OSError as error:
                why = f"the {role} cannot be started: {error}"
            if self._stopping.is_set():
                return
            if not await self._observer.process_died(self.name, role, why, process.log_tail()):
                return
            if loop.time() - started > _STEADY_S:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next(backoff)):
                    await self._stopping.wait()


class PodProcess:
    """`python -m <module>`: started by `start`, ended by `terminate` or by itself.

    Where this process has a fork server it is forked from that, unless it has GPUs of its own:
    CUDA's libraries are then loaded with the devices that it may see."""

    def __init__(
        self, module: str, environment: Mapping[str, str], log: Path, *, has_gpus: bool = False
    ) -> None:
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
                        warm_start.WarmProcess,
                        self._module,
                        self._environment,
                        log.fileno(),
                        log.fileno(),
                    )
                    return
            environment = {**self._environment, PARENT_VARIABLE: str(os.getpid())}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module,
                env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    async def wait(self) -> int:
        """Wait for its end; a negative number is the signal that ended it. Nothing of its session
        is left then."""
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
