"""Delivers the outbox: in order for each leaderboard, again and again until it has acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message
from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import (
    AlreadyExists,
    DeadlineExpired,
    InvalidInput,
    NotFound,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.rpc.backoff import Backoff
from podracer_core.rpc.resource_names import last_part
from podracer_core.telemetry.metrics import DELIVERED
from podracer_core.telemetry.spans import span
from podracer_orchestrator import events, outbox
from podracer_orchestrator.board.client import LeaderboardClient
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.state import LIVE_STATES, TRAINING_STATES, JobState
from podracer_orchestrator.outcomes import objective
from podracer_orchestrator.tables import JobRow, OutboxRow
from podracer_orchestrator.transactions import OUTBOX, ChangeFeed, Transactions, due_topic, touch

logger = logging.getLogger(__name__)

REFUSALS = (InvalidInput, NotFound, AlreadyExists, PreconditionFailed)
"""The leaderboard will never take this: repeating it would hold up everything behind it for ever."""
_LATEST_S = 1.0
"""What need not be delivered at once is then, and together."""
_GATHER_S = 0.1
"""How long anything waits for the pod that has brought it to ask for its next work: one call has both then."""
_STEPS = {outbox.RECORD_EVALUATIONS: "evaluations", outbox.SUBMIT_CANDIDATE: "candidate"}
"""The calls of an outbox that go together, as fields of ExchangeRequest.Step."""

Answered: TypeAlias = list[tuple[OutboxRow, Message | PodracerError]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A cohort that is wanted of a leaderboard."""

    request: leaderboard_pb2.ProposeCohortRequest
    answer: asyncio.Future[leaderboard_pb2.ProposeCohortResponse]


class Delivery:
    """The task that empties the outbox (`run`), and the way to have one leaderboard's part emptied now (`flush`)."""

    def __init__(self, transactions: Transactions, board: LeaderboardClient, changes: ChangeFeed, clock: Clock) -> None:
        self._transactions = transactions
        self._board = board
        self._changes = changes
        self._clock = clock
        self._delivering: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asked: dict[str, list[_Asked]] = defaultdict(list)

    async def run(self) -> None:
        """Deliver whatever there is, for ever; wait longer after each failure."""
        backoff = Backoff(0.1, 5.0)
        while True:
            version = self._changes.version(OUTBOX)
            failures = await self._flush_all()
            if failures:
                wait_s = next(backoff)
                logger.warning("the leaderboard cannot be told now (%s): again in %.1f s", failures[0], wait_s)
                await asyncio.sleep(wait_s)
            else:
                backoff.reset()
                await self._changes.wait(OUTBOX, version, _LATEST_S)
                await asyncio.sleep(_GATHER_S)

    async def flush(self, board: str) -> None:
        """Deliver what there is for a leaderboard. Raises what the leaderboard raised; the rest stays for later."""
        async with self._delivering[board]:
            await self._deliver_all(board, ())

    def turn(self, board: str) -> asyncio.Lock:
        """While it is held nothing is proposed by a leaderboard."""
        return self._turns[board]

    async def propose(self, request: leaderboard_pb2.ProposeCohortRequest) -> leaderboard_pb2.ProposeCohortResponse:
        """The next cohort of a leaderboard that has heard of everything by then: in one call with what it had not heard
        of, and with what others ask for at the same time. Raises what the leaderboard raised."""
        asked = _Asked(request, asyncio.get_running_loop().create_future())
        self._asked[request.leaderboard].append(asked)
        # By itself: others depend on it where this caller hangs up.
        try:
            await asyncio.shield(asyncio.create_task(self._propose_all(request.leaderboard)))
            return await asked.answer
        finally:
            asked.answer.cancel()

    async def _propose_all(self, board: str) -> None:
        """Have everything proposed that is asked for by then; nothing where another call has done that meanwhile."""
        async with self._turns[board], self._delivering[board]:
            asked = self._asked.pop(board, [])
            if not asked:
                return
            try:
                await self._deliver_all(board, asked)
            except Exception as error:  # noqa: BLE001 - it is raised where it was asked
                for each in asked:
                    _answer(each, error)

    async def _deliver_all(self, board: str, asked: Sequence[_Asked]) -> None:
        is_all = False
        while not is_all:
            waiting = await self._transactions.read(functools.partial(outbox.pending, board=board))
            is_all = len(waiting) < outbox.ROWS_AT_ONCE
            if waiting or asked:
                await self._deliver(board, waiting, asked if is_all else ())

    async def _flush_all(self) -> Sequence[PodracerError]:
        """What kept it from telling everything."""
        try:
            boards = await self._transactions.read(outbox.boards_with_pending)
        except PodracerError as error:
            return [error]
        return [failure for board in boards if (failure := await self._try_flush(board)) is not None]

    async def _try_flush(self, board: str) -> PodracerError | None:
        """One that cannot be told does not hold up the others."""
        try:
            await self.flush(board)
        except PodracerError as error:
            return error
        return None

    async def _deliver(self, board: str, waiting: Sequence[OutboxRow], asked: Sequence[_Asked]) -> None:
        """Deliver rows in order, and forget in one transaction those that the leaderboard has answered."""
        answered: Answered = []
        proposed: Sequence[leaderboard_pb2.ProposeCohortResponse | PodracerError] = ()
        try:
            groups = _together(waiting)
            while groups and not all(rows[0].method in _STEPS for rows in groups):
                answered += await self._call(groups.pop(0))  # what was answered before a failure counts
            if asked or len(groups) > 1:
                proposed = await self._exchange(board, groups, asked, answered)
            elif groups:
                answered += await self._call(groups[0])
        finally:
            # Before they are forgotten: a job whose budget is used ends once they are.
            for job_uid in {row.job_uid for row, _ in answered if outbox.is_of_challenge(row.method, row.request)}:
                await self._hear_next_claim(job_uid)
            if answered:
                await self._transactions.write(lambda session: self._settle(session, answered))
        for each, answer in zip(asked, proposed, strict=True):
            _answer(each, answer)

    async def _exchange(
        self, board: str, groups: Sequence[Sequence[OutboxRow]], asked: Sequence[_Asked], answered: Answered
    ) -> Sequence[leaderboard_pb2.ProposeCohortResponse | PodracerError]:
        """Deliver groups of rows and have cohorts proposed, in one call; where that is refused, one by one. What it
        delivers is added to `answered`; returns what comes of `asked`."""
        calls: list[dict[str, Any]] = [{_STEPS[rows[0].method]: outbox.merged(rows)} for rows in groups]
        steps = [leaderboard_pb2.ExchangeRequest.Step(**each) for each in calls]
        steps += [leaderboard_pb2.ExchangeRequest.Step(cohort=each.request) for each in asked]
        told = [row for rows in groups for row in rows]
        try:
            with span("deliver", told[0].traceparent, rows=len(told)) if told else contextlib.nullcontext():
                answers = await self._board.exchange(board, steps)
        except (Unavailable, DeadlineExpired):
            raise
        except PodracerError:
            for rows in groups:
                answered += await self._call(rows)
            return [await self._propose(each) for each in asked]
        for rows, answer in zip(groups, answers, strict=False):
            DELIVERED.add(len(rows), method=rows[0].method, result="taken")
            answered += [(row, getattr(answer, _STEPS[row.method])) for row in rows]
        return [answer.cohort for answer in answers[len(groups) :]]

    async def _propose(self, asked: _Asked) -> leaderboard_pb2.ProposeCohortResponse | PodracerError:
        try:
            return await self._board.propose(asked.request)
        except REFUSALS as error:
            return error

    async def _hear_next_claim(self, job_uid: str) -> None:
        """After a challenge another candidate may have the best score of all, and has not been challenged yet."""

        def claim(session: Session, candidates: Sequence[leaderboard_pb2.Candidate]) -> None:
            job = session.get(JobRow, job_uid)
            if job is not None:
                objective.hear_next_claim(session, job, candidates, self._clock.now())

        board = await self._transactions.read(functools.partial(_board_of, job_uid=job_uid))
        if board is None:
            return
        try:
            candidates = (await self._board.get(board)).candidates
        except PodracerError as error:  # whoever submits next is heard as well
            logger.warning("the leaderboard of job %s cannot be read now: %s", job_uid, error)
            return
        await self._transactions.write(lambda session: claim(session, candidates))

    async def _call(self, rows: Sequence[OutboxRow]) -> Answered:
        """Make rows of the same method in one call; where that is refused, one by one."""
        first = rows[0]
        try:
            with span("deliver", first.traceparent, method=first.method, rows=len(rows)):
                answer = await self._board.call(first.method, outbox.merged(rows))
        except REFUSALS as error:
            if len(rows) > 1:
                return [answered for row in rows for answered in await self._call([row])]
            DELIVERED.add(method=first.method, result="refused")
            logger.error("the leaderboard refused %s of job %s: %s", first.method, first.job_uid, error)
            return [(first, error)]
        DELIVERED.add(len(rows), method=first.method, result="taken")
        return [(row, answer) for row in rows]

    def _settle(self, session: Session, answered: Sequence[tuple[OutboxRow, Message | PodracerError]]) -> None:
        outbox.delivered(session, [row.id for row, _ in answered])
        for row, answer in answered:
            if isinstance(answer, PodracerError):
                self._refused(session, row, answer)
            else:
                self._delivered(session, row, answer)
            touch(session, due_topic(row.job_uid))

    def _delivered(self, session: Session, row: OutboxRow, answer: Message) -> None:
        job = session.get(JobRow, row.job_uid)
        if job is None or not isinstance(answer, leaderboard_pb2.SubmitCandidateResponse) or not answer.admitted:
            return
        request = leaderboard_pb2.SubmitCandidateRequest.FromString(row.request)
        message = f"{last_part(request.agent)} is number {answer.rank} of the leaderboard"
        now = self._clock.now()
        events.record(session, job, "CANDIDATE_ADMITTED", message, now=now, subject=request.agent, rank=answer.rank)
        if answer.challenge:
            objective.hear_claim(session, job, request.candidate, now)

    def _refused(self, session: Session, row: OutboxRow, error: PodracerError) -> None:
        job = session.get(JobRow, row.job_uid)
        if job is None:
            return
        now = self._clock.now()
        message = f"the leaderboard refused {row.method}: {error.message}"
        events.record(session, job, "LEADERBOARD_REFUSED", message, now=now, reason=error.reason)
        if row.method == outbox.CREATE_LEADERBOARD and JobState(job.state) in LIVE_STATES:
            jobs.fail(session, job, cohort_pb2.Problem(reason=error.reason, message=message), now)


def _answer(asked: _Asked, answer: leaderboard_pb2.ProposeCohortResponse | Exception) -> None:
    if asked.answer.done():
        return
    if isinstance(answer, Exception):
        asked.answer.set_exception(answer)
    else:
        asked.answer.set_result(answer)


def _together(waiting: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    """Evaluations that follow one another go together, as many as a call may hold; everything else by itself."""
    groups: list[list[OutboxRow]] = []
    room = 0
    for row in waiting:
        count = outbox.evaluation_count(row.method, row.request)
        if groups and count and groups[-1][0].job_uid == row.job_uid and count <= room:
            groups[-1].append(row)
            room -= count
        else:
            groups.append([row])
            room = outbox.MAX_EVALUATIONS - count if count else 0
    return groups


def _board_of(session: Session, job_uid: str) -> str | None:
    """The leaderboard of a job that trains; None for any other."""
    job = session.get(JobRow, job_uid)
    return outbox.board_of(job) if job is not None and JobState(job.state) in TRAINING_STATES else None
