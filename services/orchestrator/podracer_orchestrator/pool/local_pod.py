"""One local pod: a learner, and in the split layout its workers and its evaluator, each restarted
when it ends."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from podracer_core.errors import Unavailable
from podracer_orchestrator.pool.backend import PodObserver
from podracer_platform.service import (
    End,
    SupervisedProcess,
    describe_exit,
    start_child,
    warm_start,
)

logger = logging.getLogger(__name__)

LEARNER = "learner"
LEARNER_GRACE_S = 3.0
"""How long a learner has to finish its update, commit and hand its lease back."""
STOP_GRACE_S = 3.4
"""How long all processes have to end; Ctrl-C must end everything within 5 s."""
DRAIN_GRACE_S = 30.0
"""How long the learner of a surplus pod has to end: no user waits for it, and it can finish a long
update."""
Supervise = Callable[[Callable[[End, int], bool], Callable[[], None]], SupervisedProcess]
"""A `SupervisedProcess`, but for its `on_death` and `on_end`."""


class LocalPod:
    """Keeps the processes of a pod running until `stop`."""

    def __init__(
        self, name: str, processes: Mapping[str, Supervise], observer: PodObserver
    ) -> None:
        """`processes` by role: `learner`, `worker0`, …, `evaluator`. Needs the running loop."""
        self.name = name
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._ended = {role: self._loop.create_future() for role in processes}
        self._processes = {
            role: supervise(partial(self._goes_on, role), partial(self._note_end, role))
            for role, supervise in processes.items()
        }
        self._hurried = asyncio.Event()
        self._deadline = math.inf  # once it is hurried
        self._stop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start all processes in parallel; they find each other by their sockets."""
        for process in self._processes.values():
            process.start()

    def kill_learner(self) -> None:
        """End the learner at once; it is restarted."""
        self._processes[LEARNER].restart()

    @property
    def sessions(self) -> Sequence[int]:
        """The sessions that its processes run in."""
        return [pid for process in self._processes.values() if (pid := process.pid) is not None]

    def hurry(self) -> None:
        """Have no more patience than Ctrl-C allows, also where it is draining already."""
        if not self._hurried.is_set():
            self._deadline = self._loop.time() + STOP_GRACE_S
            self._hurried.set()

    async def stop(self) -> None:
        """The learner first, while its workers still answer; then the others. By force after the
        grace."""
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop())
        await asyncio.shield(self._stop_task)

    async def _stop(self) -> None:
        await self._end(LEARNER, DRAIN_GRACE_S, STOP_GRACE_S - LEARNER_GRACE_S)
        await asyncio.gather(
            *(self._end(role, STOP_GRACE_S, 0.0) for role in self._processes if role != LEARNER)
        )

    async def _end(self, role: str, grace_s: float, reserve_s: float) -> None:
        """`reserve_s`: what a hurried end leaves of its time to the processes that are ended
        afterwards."""
        ended, process = self._ended[role], self._processes[role]
        begun = self._loop.time()
        process.terminate()
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait([ended, hurried], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ended.done() and self._hurried.is_set():
            left_s = self._deadline - reserve_s - self._loop.time()
            await asyncio.wait([ended], timeout=max(0.0, left_s))
        if not ended.done():
            took_s = self._loop.time() - begun
            logger.warning("%s of %s did not end within %.1f s: killed", role, self.name, took_s)
            process.kill()
            await asyncio.wait([ended], timeout=1.0)

    def _goes_on(self, role: str, end: End, early_deaths: int) -> bool:
        """Called from the process's thread."""
        why = f"cannot be started: {end}" if isinstance(end, OSError) else how_it_ended(end)
        tail = self._processes[role].log_tail(of_all_runs=True)
        died = self._observer.process_died(self.name, role, f"the {role} {why}", tail)
        return asyncio.run_coroutine_threadsafe(died, self._loop).result()

    def _note_end(self, role: str) -> None:
        """Called from the process's thread."""
        with suppress(RuntimeError):  # the loop has been closed: nothing waits for it
            self._loop.call_soon_threadsafe(self._ended[role].set_result, None)


def start_service(
    module: str, environment: Mapping[str, str], has_gpus: bool, log: IO[bytes]
) -> subprocess.Popen[bytes] | warm_start.WarmProcess:
    """Start `python -m <module>`. It dies with this process, however this one ends.

    Where this process has a fork server it is forked from that, unless it has GPUs of its own:
    CUDA's libraries are then loaded with the devices that it may see."""
    if warm_start.is_running() and not has_gpus:
        with suppress(Unavailable):
            return warm_start.WarmProcess(module, environment, log.fileno(), log.fileno())
    return start_child((sys.executable, "-P", "-m", module), environment, log, log)


def how_it_ended(code: int) -> str:
    """`was killed by SIGKILL`, `ended with exit code 1`."""
    return f"{'ended with' if code >= 0 else 'was'} {describe_exit(code)}"
