"""Evaluations that come with renewals: those of many pods at the same time are stored in one transaction."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer_core.errors import PodracerError, Unavailable
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.leases import leases
from podracer_orchestrator.leases.deadlines import LeaseDeadlines
from podracer_orchestrator.leases.leases import Holder
from podracer_orchestrator.outcomes import results
from podracer_orchestrator.tables import LeaseRow
from podracer_orchestrator.transactions import Transactions
from podracer_orchestrator.works import progress

AT_ONCE = 100
"""Pods whose evaluations are stored together at most."""
PAUSE_S = 0.03
"""Between two such transactions: what comes meanwhile shares the next one."""


@dataclass(frozen=True, slots=True)
class _Look:
    holder: Holder
    evaluations: Sequence[agent_pb2.Evaluation]
    stored: asyncio.Future[None]


class EvaluationBatcher:
    """Stores evaluations; what comes while it does goes together into the next transaction."""

    def __init__(self, transactions: Transactions, deadlines: LeaseDeadlines, clock: Clock) -> None:
        self._transactions = transactions
        self._deadlines = deadlines
        self._clock = clock
        self._waiting: list[_Look] = []
        self._storing: asyncio.Task[None] | None = None

    async def store(self, holder: Holder, evaluations: Sequence[agent_pb2.Evaluation]) -> None:
        """Returns once they are durable; one that comes twice is recorded once, by its id.

        Raises Fenced unless the lease is held, and InvalidInput for an evaluation that is not of its cohort.
        """
        look = _Look(holder, evaluations, asyncio.get_running_loop().create_future())
        self._waiting.append(look)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_all())
        await look.stored

    async def _store_all(self) -> None:
        while self._waiting:
            looks, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            await self._answer(looks)
            await asyncio.sleep(PAUSE_S)

    async def _answer(self, looks: Sequence[_Look]) -> None:
        """Store them together; where that fails by one of them, one by one."""
        problems: Sequence[Exception | None]
        try:
            problems = await self._transactions.write(functools.partial(self._store, looks=looks))
        except Exception as error:  # noqa: BLE001 - it is raised where the look came from
            if len(looks) > 1 and not isinstance(error, Unavailable):
                for look in looks:
                    await self._answer([look])
                return
            problems = [error] * len(looks)
        for look, problem in zip(looks, problems, strict=True):
            if look.stored.done():
                continue  # its pod has hung up
            if problem is None:
                look.stored.set_result(None)
            else:
                look.stored.set_exception(problem)

    def _store(self, session: Session, looks: Sequence[_Look]) -> list[PodracerError | None]:
        """What is wrong with each; the others are stored."""
        loaded = leases.load(session, [look.holder.fence for look in looks])  # for `find_held`
        agents = progress.agents_of(session, [lease.work_id for lease in loaded])
        problems: list[PodracerError | None] = []
        sound: dict[str, list[tuple[LeaseRow, Sequence[agent_pb2.Evaluation]]]] = {}  # by job
        for look in looks:
            try:
                lease = leases.find_held(session, look.holder)
                self._deadlines.check(lease.fence)
                progress.require_lead(lease)
                results.check_evaluations(look.evaluations, agents.get(lease.work_id, []))
            except PodracerError as error:
                problems.append(error)
            else:
                problems.append(None)
                sound.setdefault(lease.job_uid, []).append((lease, look.evaluations))
        concerned = jobs.load(session, sound)
        for job in concerned:
            results.record_evaluations(session, job, sound[job.uid], self._clock.now())
        return problems
