"""Requests to the leaderboard: a job's next cohort, exactly once per work despite failures, and the
candidates of its final and its ensemble."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import PodracerError
from podracer_orchestrator import outbox
from podracer_orchestrator.board.delivery import REFUSALS, Delivery, LeaderboardClient
from podracer_orchestrator.jobs import LIVE_STATES, JobState, Remainder, jobs
from podracer_orchestrator.outcomes import ensembles, finals
from podracer_orchestrator.stored_messages import as_problem
from podracer_orchestrator.tables import JobRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import ENSEMBLE, ChangeFeed, Clock, Transactions
from podracer_orchestrator.works import Change, works
from podracer_platform.messages import seconds_to_duration
from podracer_platform.rpc import Backoff
from podracer_platform.telemetry import span

Found = TypeVar("Found")

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""How long before the leaderboard is asked again, if it had nothing or did not answer."""
MAX_ASKED = 20
"""Failed requests to a leaderboard, over a minute in all, before a job ends without its final or
ensemble."""
_IDLE_S = 60.0

Rounds = tuple[int, int]
"""The number of ended rounds of a job; after a request in vain the next one waits for another
round."""


@dataclass(frozen=True, slots=True)
class ToPropose:
    """A PROPOSING work and the request that fills it; its id is the request's, so the answer is
    always the same.

    `rounds`: those that had ended when it was decided to ask; `traceparent`: the job's.
    """

    work_id: str
    job_uid: str
    rounds: Rounds
    request: leaderboard_pb2.ProposeCohortRequest
    traceparent: str


def to_propose(
    job: JobRow,
    work: WorkRow,
    left: Remainder,
    budget_used: float | None,
    algorithms: Sequence[str],
) -> ToPropose:
    """The request for a work. The round that comes back is cut to the budget when it is leased."""
    request = leaderboard_pb2.ProposeCohortRequest(
        leaderboard=outbox.board_of(job),
        request_id=work.id,
        places=work.places,
        algorithms=algorithms,
        remaining_env_steps=left.env_steps or 0,
        remaining_cost=None if left.cost_s is None else seconds_to_duration(left.cost_s),
        budget_used=budget_used,
    )
    return ToPropose(work.id, job.uid, _rounds(job), request, job.traceparent)


class CohortProposer:
    """Asks the leaderboard, for one work of a job at a time."""

    def __init__(self, transactions: Transactions, delivery: Delivery, clock: Clock) -> None:
        self._transactions = transactions
        self._delivery = delivery
        self._clock = clock
        self._asking: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asked_in_vain: dict[str, _InVain] = {}
        self.admission_scores: dict[str, float] = {}
        """The last one of each job whose leaderboard is full."""

    def may_ask(self, job: JobRow) -> bool:
        """Whether a job may be requested now: not too soon after a request in vain, unless another
        round ended."""
        former = self._asked_in_vain.get(job.uid)
        if (
            former is not None
            and former.rounds == _rounds(job)
            and former.again_s > self._clock.monotonic()
        ):
            return False
        self._asked_in_vain.pop(job.uid, None)
        return True

    @property
    def next_chance_s(self) -> float:
        """Seconds until the next job may be requested again; infinite if there is none."""
        now = self._clock.monotonic()
        waits = (former.again_s - now for former in list(self._asked_in_vain.values()))
        return min((wait_s for wait_s in waits if wait_s > 0.0), default=math.inf)

    def turn(self, job_uid: str) -> asyncio.Lock:
        """Hold it while calling `propose` for a job, so that cohorts of its pods are proposed one
        by one."""
        return self._asking[job_uid]

    async def propose(self, what: ToPropose, then: Callable[[Session], Found]) -> Found:
        """Fill a work, if that is possible now; returns the result of `then` in the same
        transaction. Call it only in the job's `turn`."""
        try:
            with span("propose", what.traceparent, places=what.request.places):
                answer = await self._delivery.propose(what.request)
        except REFUSALS as error:
            refusal = error
            return await self._finish(lambda session: self._refused(session, what, refusal), then)
        except PodracerError as error:
            logger.warning("no proposal from the leaderboard, retrying: %s", error)
            self._ask_later(what)
            return await self._transactions.write(then)
        if not answer.proposals:
            self._ask_later(what)
        if answer.HasField("admission_score"):
            self.admission_scores[what.job_uid] = answer.admission_score
        return await self._finish(lambda session: self._store(session, what, answer), then)

    async def _finish(
        self, change: Callable[[Session], None], then: Callable[[Session], Found]
    ) -> Found:
        def operation(session: Session) -> Found:
            change(session)
            session.flush()
            return then(session)

        return await self._transactions.write(operation)

    def _store(
        self, session: Session, what: ToPropose, answer: leaderboard_pb2.ProposeCohortResponse
    ) -> None:
        work = session.get(WorkRow, what.work_id)
        if work is None or work.state != WorkState.PROPOSING:
            return  # its job has ended meanwhile
        works.store_proposal(
            session, jobs.get_by_uid(session, what.job_uid), work, answer, self._clock.now()
        )

    def _refused(self, session: Session, what: ToPropose, error: PodracerError) -> None:
        job = session.get(JobRow, what.job_uid)
        if job is not None and JobState(job.state) in LIVE_STATES:
            jobs.fail(session, job, as_problem(error), self._clock.now())

    def _ask_later(self, what: ToPropose) -> None:
        self._asked_in_vain[what.job_uid] = _InVain(what.rounds, self._clock.monotonic() + RETRY_S)


@dataclass(frozen=True, slots=True)
class _InVain:
    """A request in vain for a job: the number of rounds then, and when the next request may be
    made."""

    rounds: Rounds
    again_s: float


def _rounds(job: JobRow) -> Rounds:
    return job.completed_rounds, job.failed_works


class EnsembleMaker:
    """The task that fills the works of finals and ensembles."""

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
        self._asked: Counter[str] = Counter()  # work: number of failed attempts

    async def run(self) -> None:
        """Fill all waiting works, forever; wait longer after each failure."""
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
            waiting = await self._transactions.read(_awaiting)
            return all([await self._fill(work_id, board) for work_id, board in waiting.items()])
        except PodracerError as error:
            logger.error("cannot read the jobs that wait for an ensemble, retrying: %s", error)
            return False

    async def _fill(self, work_id: str, name: str) -> bool:
        """Whether the work waits no more; `name` is its leaderboard's."""
        board, why = None, ""
        try:
            await self._delivery.flush(name)  # the last results belong to it
            board = await self._board.get(name)
        except PodracerError as error:
            logger.warning("no ensemble from the leaderboard: %s", error)
            self._asked[work_id] += 1
            if not isinstance(error, REFUSALS) and self._asked[work_id] < MAX_ASKED:
                return False
            why = f"the leaderboard did not name its candidates: {error.message}"
        await self._transactions.write(lambda session: self._settle(session, work_id, board, why))
        self._asked.pop(work_id, None)
        return True

    def _settle(
        self, session: Session, work_id: str, board: leaderboard_pb2.Leaderboard | None, why: str
    ) -> None:
        work = session.get(WorkRow, work_id)
        if work is None or work.state != WorkState.PROPOSING:
            return  # its job has ended meanwhile
        change = Change(
            session, jobs.get_by_uid(session, work.job_uid), work, "", self._clock.now()
        )
        if board is None:
            ensembles.give_up(change, why)
        else:
            choose = finals.choose if work.kind == WorkKind.FINAL else ensembles.choose
            choose(change, board.candidates)


def _awaiting(session: Session) -> dict[str, str]:
    """The leaderboard of each work that waits for its candidates."""
    works_found = ensembles.awaiting(session)
    return {
        work.id: outbox.board_of(jobs.get_by_uid(session, work.job_uid)) for work in works_found
    }
