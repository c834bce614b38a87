"""The events of a job; and calls to the leaderboard: rows written in the transaction of the result,
and delivered afterwards.

Every request is idempotent at the leaderboard (by name, request id or evaluation id), so a repeated
delivery after a crash changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from google.protobuf.message import Message
from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_orchestrator.stored_messages import description_of, encode, spec_of
from podracer_orchestrator.tables import EventRow, JobRow, OutboxRow
from podracer_orchestrator.transactions import OUTBOX, job_topic, project_topic, touch
from podracer_platform.jobs import CONFIRMING
from podracer_platform.rpc import job_name, leaderboard_name
from podracer_platform.telemetry import current

CREATE_LEADERBOARD = "CreateLeaderboard"
DELETE_LEADERBOARD = "DeleteLeaderboard"
RECORD_EVALUATIONS = "RecordEvaluations"
SET_ALIAS = "SetAlias"
SUBMIT_CANDIDATE = "SubmitCandidate"

AgentAct: TypeAlias = (
    leaderboard_pb2.ForkAgentRequest
    | leaderboard_pb2.PinAgentRequest
    | leaderboard_pb2.StopAgentRequest
)
REQUEST_TYPES: dict[str, type[Message]] = {
    CREATE_LEADERBOARD: leaderboard_pb2.CreateLeaderboardRequest,
    DELETE_LEADERBOARD: leaderboard_pb2.DeleteLeaderboardRequest,
    RECORD_EVALUATIONS: leaderboard_pb2.RecordEvaluationsRequest,
    SET_ALIAS: leaderboard_pb2.SetAliasRequest,
    SUBMIT_CANDIDATE: leaderboard_pb2.SubmitCandidateRequest,
    "ForkAgent": leaderboard_pb2.ForkAgentRequest,
    "PinAgent": leaderboard_pb2.PinAgentRequest,
    "StopAgent": leaderboard_pb2.StopAgentRequest,
}

ROWS_AT_ONCE = 100
"""Read at once for delivery."""
MAX_EVALUATIONS = 500
"""Evaluations in one call."""

_INSERT_DELIVERY = insert(OutboxRow)
_PENDING = (
    select(OutboxRow)
    .where(OutboxRow.board == bindparam("board"))
    .order_by(OutboxRow.id)
    .limit(bindparam("most"))
)
_DELIVERED = delete(OutboxRow).where(OutboxRow.id.in_(bindparam("rows", expanding=True)))


def board_of(job: JobRow) -> str:
    """The name of a job's leaderboard."""
    return leaderboard_name(job.project, job.job_id)


def create_leaderboard(
    session: Session, job: JobRow, founders: Iterable[evolution_pb2.Founder]
) -> None:
    """Create the job's leaderboard. Its environment is known, and `founders` can act in it."""
    spec = spec_of(job)
    board = leaderboard_pb2.LeaderboardSpec(
        job=job_name(job.project, job.job_id),
        job_uid=job.uid,
        objective=spec.objective,
        search=spec.search,
        evolution=spec.evolution,
        environment_description=description_of(job),
        seed=spec.seed,
        founders=founders,
    )
    _append(
        session,
        job,
        CREATE_LEADERBOARD,
        leaderboard_pb2.CreateLeaderboardRequest(name=board_of(job), spec=board),
    )


def delete_leaderboard(session: Session, job: JobRow) -> None:
    """Delete the job's leaderboard."""
    _append(
        session,
        job,
        DELETE_LEADERBOARD,
        leaderboard_pb2.DeleteLeaderboardRequest(name=board_of(job)),
    )


def set_alias(
    session: Session,
    job: JobRow,
    alias: str,
    policy: agent_pb2.Parent,
    reason: str,
    request_id: str,
) -> None:
    """Point an alias of the job's leaderboard at a policy, whose agent may be of another job."""
    request = leaderboard_pb2.SetAliasRequest(
        leaderboard=board_of(job),
        alias=alias,
        agent=policy.agent,
        checkpoint=policy.checkpoint,
        reason=reason,
        request_id=request_id,
    )
    _append(session, job, SET_ALIAS, request)


def act_on_agent(session: Session, job: JobRow, request: AgentAct) -> None:
    """Fork, pin or stop an agent."""
    _append(session, job, request.DESCRIPTOR.name.removesuffix("Request"), request)


def submit_candidate(
    session: Session, job: JobRow, request: leaderboard_pb2.SubmitCandidateRequest
) -> None:
    """Report an agent's round."""
    _append(session, job, SUBMIT_CANDIDATE, request)


def record_evaluations(
    session: Session,
    job: JobRow,
    evaluations: Iterable[agent_pb2.Evaluation],
    *,
    at_once: bool = True,
) -> None:
    """Add evaluations to the leaderboard's history. Not `at_once`: delivery may be delayed."""
    waiting = list(evaluations)
    for first in range(0, len(waiting), MAX_EVALUATIONS):
        batch = waiting[first : first + MAX_EVALUATIONS]
        request = leaderboard_pb2.RecordEvaluationsRequest(
            leaderboard=board_of(job), evaluations=batch
        )
        _append(session, job, RECORD_EVALUATIONS, request, at_once=at_once)


def pending(session: Session, board: str, limit: int = ROWS_AT_ONCE) -> Sequence[OutboxRow]:
    """The undelivered rows of a leaderboard, in order."""
    return session.scalars(_PENDING, {"board": board, "most": limit}).all()


def has_challenge(session: Session, board: str) -> bool:
    """Whether the result of a challenge or a final is not delivered yet."""
    query = select(OutboxRow.request).where(
        OutboxRow.board == board, OutboxRow.method == RECORD_EVALUATIONS
    )
    return any(is_of_challenge(RECORD_EVALUATIONS, request) for request in session.scalars(query))


def has_news(session: Session, board: str) -> bool:
    """Whether a row other than looks is not delivered yet."""
    rows = session.execute(
        select(OutboxRow.method, OutboxRow.request).where(OutboxRow.board == board)
    )
    return any(
        method != RECORD_EVALUATIONS or is_of_challenge(method, request) for method, request in rows
    )


def is_of_challenge(method: str, request: bytes) -> bool:
    """Whether a row is the result of a challenge or a final."""
    if method != RECORD_EVALUATIONS:
        return False
    evaluations = leaderboard_pb2.RecordEvaluationsRequest.FromString(request).evaluations
    return any(each.purpose in CONFIRMING for each in evaluations)


def evaluation_count(method: str, request: bytes) -> int:
    """The number of evaluations in a row; 0 for other calls."""
    if method != RECORD_EVALUATIONS:
        return 0
    return len(leaderboard_pb2.RecordEvaluationsRequest.FromString(request).evaluations)


def merged(rows: Sequence[OutboxRow]) -> Message:
    """The request of rows of the same method: their evaluations together."""
    # Messages in wire form, one after the other, are one message with the lists of all.
    return REQUEST_TYPES[rows[0].method].FromString(b"".join(row.request for row in rows))


def boards_with_pending(session: Session) -> Sequence[str]:
    """The leaderboards with undelivered rows."""
    return session.scalars(select(OutboxRow.board).distinct()).all()


def delivered(session: Session, row_ids: Sequence[int]) -> None:
    """Delete rows that the leaderboard has acknowledged, or refused for good."""
    session.connection().execute(_DELIVERED, {"rows": row_ids})


def _append(
    session: Session, job: JobRow, method: str, request: Message, *, at_once: bool = True
) -> None:
    row = {"board": board_of(job), "job_uid": job.uid, "method": method, "request": encode(request)}
    session.connection().execute(_INSERT_DELIVERY, row | {"traceparent": current().traceparent})
    if at_once:
        touch(session, OUTBOX)


_INSERT_EVENT = insert(EventRow)


def record(
    session: Session,
    job: JobRow,
    kind: str,
    message: str,
    *,
    now: datetime,
    subject: str = "",
    **details: object,
) -> None:
    """Append an event; its position is the job's newest."""
    job.event_position += 1
    event = {
        "job_uid": job.uid,
        "position": job.event_position,
        "kind": kind,
        "message": message,
        "subject": subject,
        "time": now,
        "details": {key: str(value) for key, value in details.items()},
    }
    session.connection().execute(_INSERT_EVENT, event)
    touch(session, job_topic(job.uid), project_topic(job.project))


def after(session: Session, job_uid: str, position: int, limit: int) -> Sequence[EventRow]:
    """The events after `position`, oldest first, at most `limit`."""
    query = select(EventRow).where(EventRow.job_uid == job_uid, EventRow.position > position)
    return session.scalars(query.order_by(EventRow.position).limit(limit)).all()


def details(session: Session, job: JobRow, kind: str) -> Sequence[dict[str, str]]:
    """The details of a job's events of a kind, oldest first."""
    query = select(EventRow.details).where(EventRow.job_uid == job.uid, EventRow.kind == kind)
    return session.scalars(query.order_by(EventRow.position)).all()


def record_once(
    session: Session,
    job: JobRow,
    kind: str,
    message: str,
    known: Mapping[str, str],
    *,
    now: datetime,
    **further: str,
) -> None:
    """Append an event with the details `known`, unless the job has one of its kind with these."""
    if not any(known.items() <= each.items() for each in details(session, job, kind)):
        record(session, job, kind, message, now=now, **{**further, **known})


def messages(session: Session, job: JobRow, kind: str) -> Sequence[str]:
    """The messages of a job's events of a kind, oldest first."""
    query = select(EventRow.message).where(EventRow.job_uid == job.uid, EventRow.kind == kind)
    return session.scalars(query.order_by(EventRow.position)).all()
