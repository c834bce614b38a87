"""The task that looks after time: leases that expire, active time that is counted, pods that fell silent."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.orm import Session

from podracer_core.errors import PodracerError
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.dispatch.lease_operations import LeaseOperations
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.state import ACTIVE_STATES
from podracer_orchestrator.leases import followers, leases
from podracer_orchestrator.leases.deadlines import LeaseDeadlines
from podracer_orchestrator.outcomes import objective
from podracer_orchestrator.pool import pods
from podracer_orchestrator.tables import PodState
from podracer_orchestrator.transactions import Transactions

logger = logging.getLogger(__name__)

ACCRUAL_S = 2.0
"""Active time, and what followers cost, is stored this often: a crash forgets no more of it."""
_SHORTEST_S = 0.05


class Sweep:
    """Runs for ever beside the calls."""

    def __init__(
        self, transactions: Transactions, deadlines: LeaseDeadlines, keeper: LeaseOperations, clock: Clock
    ) -> None:
        self._transactions = transactions
        self._deadlines = deadlines
        self._keeper = keeper
        self._clock = clock

    async def run(self) -> None:
        """Sleep until the next deadline, or until active time has to be stored."""
        while True:
            next_deadline = self._deadlines.next_deadline()
            wait_s = ACCRUAL_S if next_deadline is None else next_deadline - self._clock.monotonic()
            await asyncio.sleep(min(ACCRUAL_S, max(_SHORTEST_S, wait_s)))
            try:
                await self._keeper.expire_overdue()
                await self._transactions.write(self.tidy)
            except PodracerError as error:
                logger.error("the sweep failed, it goes on: %s", error)

    def tidy(self, session: Session) -> None:
        """Count active time and cost of followers, end jobs with nothing left to use, and note pods that are gone."""
        now = self._clock.now()
        followers.count_costs(session, now)
        for job in jobs.in_states(session, ACTIVE_STATES):
            leases.accrue(job, now)
            objective.finish_if_due(session, job, now)
        for pod in pods.silent(session, now):
            pods.set_state(session, pod.name, PodState.LOST, "it has stopped asking for work")
