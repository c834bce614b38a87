"""One local pod: a learner, and in the split layout its workers and its evaluator, each started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podracer_core.rpc.backoff import Backoff
from podracer_orchestrator.pool.backend import PodObserver
from podracer_orchestrator.pool.process import PodProcess, describe_exit

logger = logging.getLogger(__name__)

LEARNER = "learner"
LEARNER_GRACE_S = 3.0
"""How long a learner has to finish its update, commit and hand its lease back."""
STOP_GRACE_S = 3.4
"""How long all processes together have; Ctrl-C must end everything within 5 s."""
DRAIN_GRACE_S = 30.0
"""How long the learner of a pod that the pool gives up has: nobody waits for it, and a long update is worth its end."""
_STEADY_S = 20.0
"""A process that has lived so long had started well: the next wait is short again."""


@dataclass(frozen=True, slots=True)
class PodProcesses:
    """The processes of a pod by role: `learner`, `worker0`, …, `evaluator`."""

    name: str
    by_role: Mapping[str, PodProcess]


class LocalPod:
    """Keeps the processes of a pod running until `stop`."""

    def __init__(self, processes: PodProcesses, observer: PodObserver) -> None:
        self.name = processes.name
        self._processes = processes.by_role
        self._observer = observer
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._deadline = math.inf  # once it is hurried
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start all processes side by side; they find one another by their sockets."""
        for role, process in self._processes.items():
            self._keepers[role] = asyncio.create_task(self._keep(role, process), name=f"{self.name}-{role}")

    def kill_learner(self) -> None:
        """End the learner at once; it is started again."""
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
        """The learner first, while its workers still answer; then the others. By force after the grace."""
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop())
        await asyncio.shield(self._stop_task)

    async def _stop(self) -> None:
        self._stopping.set()
        await self._end(LEARNER, DRAIN_GRACE_S, STOP_GRACE_S - LEARNER_GRACE_S)
        await asyncio.gather(*(self._end(role, STOP_GRACE_S, 0.0) for role in self._processes if role != LEARNER))

    async def _end(self, role: str, grace_s: float, reserve_s: float) -> None:
        """`reserve_s`: what a hurried end leaves of its time to the processes that are ended afterwards."""
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
                if self._stopping.is_set():  # it was asked to stop before there was anything to terminate
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
