"""The client of the leaderboard, and the delivery of the outbox: in order for each leaderboard,
with retries until it has acknowledged."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.leaderboard.v1.leaderboard_service_pb2_grpc import LeaderboardServiceStub
from podracer_core.errors import (
    AlreadyExists,
    DeadlineExpired,
    InvalidInput,
    NotFound,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import LIVE_STATES, TRAINING_STATES, JobState, jobs
from podracer_orchestrator.outcomes import broken_worlds, objective
from podracer_orchestrator.tables import JobRow, OutboxRow
from podracer_orchestrator.transactions import (
    OUTBOX,
    ChangeFeed,
    Clock,
    Transactions,
    due_topic,
    touch,
)
from podracer_platform.rpc import CHUNK_REQUEST_BYTES, Backoff, last_part
from podracer_platform.telemetry import DELIVERED, span

TIMEOUT_S = 10.0
_PAGE = 1000


class LeaderboardClient:
    """Calls with the role `control`. Each raises the leaderboard's PodracerError, or
    Unavailable."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = LeaderboardServiceStub(channel)

    async def propose(
        self, request: leaderboard_pb2.ProposeCohortRequest
    ) -> leaderboard_pb2.ProposeCohortResponse:
        """The next cohort; the same `request_id` again gets the same answer."""
        answer: leaderboard_pb2.ProposeCohortResponse = await self._stub.ProposeCohort(
            request, timeout=TIMEOUT_S
        )
        return answer

    async def exchange(
        self, name: str, steps: Iterable[leaderboard_pb2.ExchangeRequest.Step]
    ) -> Sequence[leaderboard_pb2.ExchangeResponse.Answer]:
        """Several calls in one, with an answer to each; if one is refused, none is carried out."""
        request = leaderboard_pb2.ExchangeRequest(leaderboard=name, steps=steps)
        answer: leaderboard_pb2.ExchangeResponse = await self._stub.Exchange(
            request, timeout=TIMEOUT_S
        )
        return answer.answers

    async def get(self, name: str) -> leaderboard_pb2.Leaderboard:
        """A leaderboard as it is now, with its candidates in their order."""
        request = leaderboard_pb2.GetLeaderboardRequest(name=name)
        answer: leaderboard_pb2.GetLeaderboardResponse = await self._stub.GetLeaderboard(
            request, timeout=TIMEOUT_S
        )
        return answer.leaderboard

    async def agents(self, name: str) -> list[leaderboard_pb2.Agent]:
        """Every agent that a leaderboard has ever had, oldest first."""
        request = leaderboard_pb2.ListAgentsRequest(leaderboard=name, page_size=_PAGE)
        return [
            each async for page in _pages(self._stub.ListAgents, request) for each in page.agents
        ]

    async def agent(self, name: str) -> leaderboard_pb2.Agent:
        """The agent of that name."""
        request = leaderboard_pb2.GetAgentRequest(name=name)
        answer: leaderboard_pb2.GetAgentResponse = await self._stub.GetAgent(
            request, timeout=TIMEOUT_S
        )
        return answer.agent

    async def fork(self, request: leaderboard_pb2.ForkAgentRequest) -> leaderboard_pb2.Agent:
        """The new agent; with `validate_only` the one that would be made, without a name unless it
        exists already."""
        answer: leaderboard_pb2.ForkAgentResponse = await self._stub.ForkAgent(
            request, timeout=TIMEOUT_S
        )
        return answer.agent

    async def alias_changes(self, name: str) -> list[leaderboard_pb2.AliasChange]:
        """Every change of the leaderboard's aliases, newest first."""
        request = leaderboard_pb2.ListAliasHistoryRequest(leaderboard=name, page_size=_PAGE)
        return [
            each
            async for page in _pages(self._stub.ListAliasHistory, request)
            for each in page.changes
        ]

    async def call(self, method: str, request: Message) -> Message:
        """Make a call of the outbox."""
        answer: Message = await getattr(self._stub, method)(request, timeout=TIMEOUT_S)
        return answer


async def _pages(call: Callable[..., Awaitable[Any]], request: Any) -> AsyncIterator[Any]:
    """The answers to a call that lists, page by page."""
    while True:
        page = await call(request, timeout=TIMEOUT_S)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


logger = logging.getLogger(__name__)

REFUSALS = (InvalidInput, NotFound, AlreadyExists, PreconditionFailed)
"""The leaderboard will never accept this row: repeating it would block all later rows forever."""
_LATEST_S = 1.0
"""The longest delay of rows that need not be delivered at once, so that they go together."""
_GATHER_S = 0.1
"""How long a result waits until its pod asks for the next work: then one call carries both."""
_STEPS = {outbox.RECORD_EVALUATIONS: "evaluations", outbox.SUBMIT_CANDIDATE: "candidate"}
"""The calls of an outbox that go together, as fields of ExchangeRequest.Step."""

Answered: TypeAlias = list[tuple[OutboxRow, Message | PodracerError]]
Cohort: TypeAlias = leaderboard_pb2.ProposeCohortResponse


class Delivery:
    """The task that delivers the outbox (`run`), or one leaderboard's part of it at once
    (`flush`)."""

    def __init__(
        self,
        transactions: Transactions,
        board: LeaderboardClient,
        changes: ChangeFeed,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._board = board
        self._changes = changes
        self._clock = clock
        self._delivering: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> None:
        """Deliver all rows, forever; wait longer after each failure."""
        backoff = Backoff(0.1, 5.0)
        while True:
            version = self._changes.version(OUTBOX)
            failures = await self._flush_all()
            if failures:
                wait_s = next(backoff)
                logger.warning(
                    "cannot deliver to the leaderboard (%s), retrying in %.1f s",
                    failures[0],
                    wait_s,
                )
                await asyncio.sleep(wait_s)
            else:
                backoff.reset()
                await self._changes.wait(OUTBOX, version, _LATEST_S)
                await asyncio.sleep(_GATHER_S)

    async def flush(self, board: str) -> None:
        """Deliver all rows for a leaderboard. Raises what the leaderboard raised; the rest stays
        for later."""
        await self._exchange(board)

    async def propose(self, request: leaderboard_pb2.ProposeCohortRequest) -> Cohort:
        """The next cohort of a leaderboard, after its rows in the outbox, which go in the same
        call. Raises what the leaderboard raised."""
        proposed = await self._exchange(request.leaderboard, request)
        assert proposed is not None, "it was asked for"
        return proposed

    async def _exchange(
        self, board: str, wanted: leaderboard_pb2.ProposeCohortRequest | None = None
    ) -> Cohort | None:
        async with self._delivering[board]:
            while True:
                waiting = await self._transactions.read(
                    functools.partial(outbox.pending, board=board)
                )
                is_all = len(waiting) < outbox.ROWS_AT_ONCE
                proposed = await self._deliver(board, waiting, wanted if is_all else None)
                if is_all:
                    return proposed

    async def _flush_all(self) -> Sequence[PodracerError]:
        """The errors that prevented delivery."""
        try:
            boards = await self._transactions.read(outbox.boards_with_pending)
        except PodracerError as error:
            return [error]
        return [
            failure for board in boards if (failure := await self._try_flush(board)) is not None
        ]

    async def _try_flush(self, board: str) -> PodracerError | None:
        """A leaderboard that does not answer does not block the others."""
        try:
            await self.flush(board)
        except PodracerError as error:
            return error
        return None

    async def _deliver(
        self,
        board: str,
        waiting: Sequence[OutboxRow],
        wanted: leaderboard_pb2.ProposeCohortRequest | None,
    ) -> Cohort | None:
        """Deliver rows in order, and delete in one transaction those that the leaderboard has
        answered. Returns the `wanted` cohort."""
        answered: Answered = []
        try:
            groups = _together(waiting)
            while groups and not all(rows[0].method in _STEPS for rows in groups):
                # what was answered before a failure counts
                answered += await self._call(groups.pop(0))
            return await self._tell(board, groups, wanted, answered)
        finally:
            # Before the rows are deleted: a job whose budget is used ends once they are.
            for job_uid in {
                row.job_uid
                for row, _ in answered
                if outbox.is_of_challenge(row.method, row.request)
            }:
                await self._hear_next_claim(job_uid)
            if any(getattr(answer, "exclusions", ()) for _, answer in answered):
                for job_uid in await self._transactions.write(
                    lambda session: self._exclude(session, answered)
                ):
                    await self._hear_next_claim(job_uid)  # which names another best
            if answered:
                await self._transactions.write(lambda session: self._settle(session, answered))

    async def _tell(
        self,
        board: str,
        groups: Sequence[Sequence[OutboxRow]],
        wanted: leaderboard_pb2.ProposeCohortRequest | None,
        answered: Answered,
    ) -> Cohort | None:
        """Deliver groups of rows, which are added to `answered`, and request a cohort: in one call,
        or one by one if that call is refused."""
        calls: list[dict[str, Any]] = [
            {_STEPS[rows[0].method]: outbox.merged(rows)} for rows in groups
        ]
        steps = [leaderboard_pb2.ExchangeRequest.Step(**call) for call in calls]
        if wanted is not None:
            steps.append(leaderboard_pb2.ExchangeRequest.Step(cohort=wanted))
        if len(steps) > 1:
            try:
                with span("deliver", groups[-1][-1].traceparent, rows=sum(map(len, groups))):
                    answers = await self._board.exchange(board, steps)
            except (Unavailable, DeadlineExpired):
                raise
            except PodracerError as error:
                logger.info(
                    "the leaderboard refused an exchange, sending its parts one by one: %s", error
                )
            else:
                for rows, answer in zip(groups, answers, strict=False):
                    DELIVERED.add(len(rows), method=rows[0].method, result="taken")
                    answered += [(row, getattr(answer, _STEPS[row.method])) for row in rows]
                return answers[-1].cohort if wanted is not None else None
        for rows in groups:
            answered += await self._call(rows)
        return None if wanted is None else await self._board.propose(wanted)

    async def _hear_next_claim(self, job_uid: str) -> None:
        """Challenge the next claim: another candidate may have the best score after a challenge,
        and be untested."""

        def claim(session: Session, candidates: Sequence[leaderboard_pb2.Candidate]) -> None:
            job = session.get(JobRow, job_uid)
            if job is not None:
                objective.hear_next_claim(session, job, candidates, self._clock.now())

        board = await self._transactions.read(functools.partial(_board_of, job_uid=job_uid))
        if board is None:
            return
        try:
            candidates = (await self._board.get(board)).candidates
        except PodracerError as error:  # the next submission is checked as well
            logger.warning("cannot read the leaderboard of job %s: %s", job_uid, error)
            return
        await self._transactions.write(lambda session: claim(session, candidates))

    async def _call(self, rows: Sequence[OutboxRow]) -> Answered:
        """Deliver rows of the same method in one call, or one by one if that is refused."""
        first = rows[0]
        try:
            with span("deliver", first.traceparent, method=first.method, rows=len(rows)):
                answer = await self._board.call(first.method, outbox.merged(rows))
        except REFUSALS as error:
            if len(rows) > 1:
                return [answered for row in rows for answered in await self._call([row])]
            DELIVERED.add(method=first.method, result="refused")
            logger.error(
                "the leaderboard refused %s of job %s: %s", first.method, first.job_uid, error
            )
            return [(first, error)]
        DELIVERED.add(len(rows), method=first.method, result="taken")
        return [(row, answer) for row in rows]

    def _exclude(self, session: Session, answered: Answered) -> set[str]:
        """Keep the last answer's word on who cannot be first. Returns the jobs that have lost their
        best."""
        found = {
            row.job_uid: answer.exclusions
            for row, answer in answered
            if hasattr(answer, "exclusions")
        }
        jobs_found = [(session.get(JobRow, uid), exclusions) for uid, exclusions in found.items()]
        now = self._clock.now()
        return {
            job.uid
            for job, each in jobs_found
            if job and broken_worlds.exclude(session, job, each, now)
        }

    def _settle(self, session: Session, answered: Answered) -> None:
        outbox.delivered(session, [row.id for row, _ in answered])
        for row, answer in answered:
            if isinstance(answer, PodracerError):
                self._refused(session, row, answer)
            else:
                self._delivered(session, row, answer)
            touch(session, due_topic(row.job_uid))

    def _delivered(self, session: Session, row: OutboxRow, answer: Message) -> None:
        job = session.get(JobRow, row.job_uid)
        if job is not None and job.excluded and not getattr(answer, "exclusions", True):
            broken_worlds.exclude(session, job, (), self._clock.now())  # it has ended
        if (
            job is None
            or not isinstance(answer, leaderboard_pb2.SubmitCandidateResponse)
            or not answer.admitted
        ):
            return
        request = leaderboard_pb2.SubmitCandidateRequest.FromString(row.request)
        message = f"{last_part(request.agent)} is number {answer.rank} of the leaderboard"
        now = self._clock.now()
        outbox.record(
            session,
            job,
            "CANDIDATE_ADMITTED",
            message,
            now=now,
            subject=request.agent,
            rank=answer.rank,
        )
        if answer.challenge:
            objective.hear_claim(session, job, request.candidate, now)

    def _refused(self, session: Session, row: OutboxRow, error: PodracerError) -> None:
        job = session.get(JobRow, row.job_uid)
        if job is None:
            return
        now = self._clock.now()
        message = f"the leaderboard refused {row.method}: {error.message}"
        outbox.record(session, job, "LEADERBOARD_REFUSED", message, now=now, reason=error.reason)
        if row.method == outbox.CREATE_LEADERBOARD and JobState(job.state) in LIVE_STATES:
            jobs.fail(session, job, cohort_pb2.Problem(reason=error.reason, message=message), now)


def _together(waiting: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    """Group consecutive evaluations, up to the limit of a call; all other rows go by themselves."""
    groups: list[list[OutboxRow]] = []
    room = room_bytes = 0
    for row in waiting:
        count = outbox.evaluation_count(row.method, row.request)
        fits = count <= room and len(row.request) <= room_bytes
        if groups and count and groups[-1][0].job_uid == row.job_uid and fits:
            groups[-1].append(row)
            room, room_bytes = room - count, room_bytes - len(row.request)
        else:
            groups.append([row])
            room = outbox.MAX_EVALUATIONS - count if count else 0
            room_bytes = CHUNK_REQUEST_BYTES // 2 - len(row.request)
    return groups


def _board_of(session: Session, job_uid: str) -> str | None:
    """The leaderboard of a job that trains; None for any other."""
    job = session.get(JobRow, job_uid)
    return (
        outbox.board_of(job) if job is not None and JobState(job.state) in TRAINING_STATES else None
    )
