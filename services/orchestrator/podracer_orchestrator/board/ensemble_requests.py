"""Asking the leaderboard which candidates make a job's ensemble."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import PodracerError
from podracer_core.rpc.backoff import Backoff
from podracer_orchestrator import outbox
from podracer_orchestrator.board.client import LeaderboardClient
from podracer_orchestrator.board.delivery import REFUSALS, Delivery
from podracer_orchestrator.changes import ENSEMBLE, ChangeFeed
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.outcomes import ensembles, objective
from podracer_orchestrator.tables import WorkRow, WorkState
from podracer_orchestrator.transactions import Transactions

logger = logging.getLogger(__name__)

MAX_ASKED = 20
"""Times that a leaderboard is asked in vain, which takes over a minute, before a job ends without its ensemble."""
_IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Awaiting:
    work_id: str
    job_uid: str
    board: str


class EnsembleMaker:
    """The task that fills the works of ensembles."""

    def __init__(
        self,
        transactions: Transactions,
        board: LeaderboardClient,
        delivery: Delivery,
        changes: ChangeFeed,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._board = board
        self._delivery = delivery
        self._changes = changes
        self._clock = clock
        self._asked: Counter[str] = Counter()  # work: times in vain

    async def run(self) -> None:
        """Fill whatever waits, for ever; wait longer after each failure."""
        backoff = Backoff(0.1, 5.0)
        while True:
            version = self._changes.version(ENSEMBLE)
            if await self._fill_all():
                backoff.reset()
                await self._changes.wait(ENSEMBLE, version, _IDLE_S)
            else:
                await asyncio.sleep(next(backoff))

    async def _fill_all(self) -> bool:
        """Whether no work waits any more."""
        try:
            return all([await self._fill(each) for each in await self._transactions.read(_awaiting)])
        except PodracerError as error:
            logger.error("ensembles cannot be looked after now: %s", error)
            return False

    async def _fill(self, what: _Awaiting) -> bool:
        """Whether the work waits no more."""
        try:
            await self._delivery.flush(what.board)  # the last results belong to it
            board = await self._board.get(what.board)
        except PodracerError as error:
            logger.warning("the leaderboard cannot name the ensemble now: %s", error)
            self._asked[what.work_id] += 1
            if not isinstance(error, REFUSALS) and self._asked[what.work_id] < MAX_ASKED:
                return False
            why = f"the leaderboard did not name its candidates: {error.message}"
            await self._transactions.write(functools.partial(self._settle, what=what, board=None, why=why))
        else:
            await self._transactions.write(functools.partial(self._settle, what=what, board=board))
        self._asked.pop(what.work_id, None)
        return True

    def _settle(
        self, session: Session, what: _Awaiting, board: leaderboard_pb2.Leaderboard | None, why: str = ""
    ) -> None:
        work = session.get(WorkRow, what.work_id)
        if work is None or work.state != WorkState.PROPOSING:
            return  # its job has ended meanwhile
        job, now = jobs.get_by_uid(session, what.job_uid), self._clock.now()
        if board is None:
            ensembles.give_up(session, job, work, why, now)
        else:
            ensembles.choose(session, job, work, board.candidates, now)
        objective.finish_if_due(session, job, now)


def _awaiting(session: Session) -> Sequence[_Awaiting]:
    return [
        _Awaiting(work.id, work.job_uid, outbox.board_of(jobs.get_by_uid(session, work.job_uid)))
        for work in ensembles.awaiting(session)
    ]
