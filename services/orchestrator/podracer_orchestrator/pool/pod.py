"""One local pod: a learner, and in the split layout its workers and its evaluator, each started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
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
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start all processes side by side; they find one another by their sockets."""
        for role, process in self._processes.items():
            self._keepers[role] = asyncio.create_task(self._keep(role, process), name=f"{self.name}-{role}")

    def kill_learner(self) -> None:
        """End the learner at once; it is started again."""
        self._processes[LEARNER].kill()

    async def stop(self) -> None:
        """The learner first, while its workers still answer; then the others. By force after the grace."""
        if self._stop_task is None:
            self._stop_task = asyncio.create_task(self._stop())
        await asyncio.shield(self._stop_task)

    async def _stop(self) -> None:
        deadline = asyncio.get_running_loop().time() + STOP_GRACE_S
        self._stopping.set()
        await self._end(LEARNER, LEARNER_GRACE_S)
        left_s = deadline - asyncio.get_running_loop().time()
        await asyncio.gather(*(self._end(role, left_s) for role in self._processes if role != LEARNER))

    async def _end(self, role: str, grace_s: float) -> None:
        keeper, process = self._keepers[role], self._processes[role]
        process.terminate()
        await asyncio.wait([keeper], timeout=grace_s)
        if not keeper.done():
            logger.warning("%s of %s did not end within %.1f s: killed", role, self.name, grace_s)
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
                await asyncio.wait_for(self._stopping.wait(), next(backoff))
