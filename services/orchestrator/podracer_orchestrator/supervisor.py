"""The task that advances continuous jobs."""

from __future__ import annotations

import logging

from podracer_core.errors import PodracerError
from podracer_orchestrator import supervision
from podracer_orchestrator.changes import POOL, ChangeFeed
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.transactions import Transactions

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Data sets and the time are looked at this often; the end of a job is heard of at once."""


class Supervisor:
    """Runs for ever beside the calls."""

    def __init__(self, transactions: Transactions, changes: ChangeFeed, clock: Clock) -> None:
        self._transactions = transactions
        self._changes = changes
        self._clock = clock

    async def run(self) -> None:
        """Advance all jobs whenever one may have ended, and now and then."""
        while True:
            version = self._changes.version(POOL)
            await self.advance_all()
            await self._changes.wait(POOL, version, INTERVAL_S)

    async def advance_all(self) -> None:
        """Take every step that can be taken now; one job's trouble does not hold up another."""
        try:
            uids = await self._transactions.read(supervision.running)
        except PodracerError as error:
            logger.error("continuous jobs cannot be looked after now: %s", error)
            return
        for uid in uids:
            try:
                await self._advance(uid)
            except PodracerError as error:
                logger.error("the continuous job %s cannot be advanced now, it is tried again: %s", uid, error)

    async def _advance(self, uid: str) -> None:
        while await self._transactions.read(lambda session: supervision.needs_step(session, uid, self._clock.now())):
            if not await self._transactions.write(lambda session: supervision.advance(session, uid, self._clock.now())):
                return
