"""The aliases of a job: promotion, rollback and history.

An alias is a stack: a promotion pushes a policy, a rollback pops the newest one. The decision's
transaction writes the leaderboard's update to the outbox."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.storage import of_project
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.stored_messages import (
    challenger_of,
    champion_of,
    checkpoint_reference,
    description_of,
    encode,
    policy_of,
    spec_of,
)
from podracer_orchestrator.tables import CheckpointRow, Decision, JobRow, PromotionRow
from podracer_orchestrator.works import evaluation_works
from podracer_platform.jobs import Continuous
from podracer_platform.rpc import last_part

MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy for an alias: an agent's checkpoint, and its evaluation, if there is one."""

    agent: str
    prefix: str
    evaluation: agent_pb2.Evaluation | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """The stored facts of a generation and its contest, for a decision about it."""

    number: int
    child: str
    data_sha256: str
    champion: agent_pb2.Evaluation | None = None
    challenger: agent_pb2.Evaluation | None = None


def default_alias(job: JobRow) -> str:
    """The alias of a job's champion."""
    return spec_of(job).continuous.alias or Continuous.alias


def stack(session: Session, job_uid: str, alias: str) -> list[PromotionRow]:
    """The promotions that were not rolled back, oldest first; the alias points at the last one."""
    query = select(PromotionRow).where(PromotionRow.job_uid == job_uid, PromotionRow.alias == alias)
    found: list[PromotionRow] = []
    for row in session.scalars(query.order_by(PromotionRow.position)):
        if row.decision == Decision.PROMOTED:
            found.append(row)
        elif row.decision == Decision.ROLLED_BACK:
            found.pop()
    return found


def champion(session: Session, job: JobRow) -> PromotionRow | None:
    """The policy of the job's own alias; None before the first promotion."""
    found = stack(session, job.uid, default_alias(job))
    return found[-1] if found else None


def rolled_back(session: Session, job: JobRow) -> set[str]:
    """Prefixes of policies that the job's own alias was rolled back from and has not been promoted
    to again."""
    alias = default_alias(job)
    query = select(PromotionRow.prefix).where(
        PromotionRow.job_uid == job.uid,
        PromotionRow.alias == alias,
        PromotionRow.decision == Decision.PROMOTED,
    )
    return set(session.scalars(query)) - {row.prefix for row in stack(session, job.uid, alias)}


def promote(
    session: Session,
    job: JobRow,
    policy: Policy,
    now: datetime,
    *,
    alias: str = "",
    reason: str = "",
    request_id: str = "",
    generation: Generation | None = None,
) -> PromotionRow:
    """Point an alias of `job` at a policy; repeating the request changes nothing.

    Raises PreconditionFailed if the checkpoint is gone, or the job has no leaderboard yet.
    """
    former = _by_request(session, job, request_id)
    if former is not None:
        return former
    if not is_there(session, job.project, policy.prefix):
        message = (
            f"the checkpoint {policy.prefix} of {policy.agent} is not there any more, or damaged"
        )
        raise PreconditionFailed(message, reason="NO_CANDIDATE", agent=policy.agent)
    checkpoint = session.get_one(CheckpointRow, policy.prefix)
    _require_board(session, job, checkpoint, now)
    if generation is None and policy.evaluation is not None:
        generation = Generation(0, "", "", challenger=policy.evaluation)
    row = _row(
        session, job, alias or default_alias(job), Decision.PROMOTED, reason, now, generation
    )
    row.agent, row.prefix, row.request_id = policy.agent, policy.prefix, request_id or None
    row.checkpoint = encode(checkpoint_reference(checkpoint))
    _tell(session, job, row)
    message = (
        f"{row.alias} is {policy.agent}: {reason}" if reason else f"{row.alias} is {policy.agent}"
    )
    outbox.record(
        session, job, "CHAMPION_PROMOTED", message, now=now, subject=policy.agent, **_details(row)
    )
    return row


def rollback(
    session: Session,
    job: JobRow,
    now: datetime,
    *,
    alias: str = "",
    reason: str = "",
    request_id: str = "",
) -> PromotionRow:
    """Point an alias back at its former policy; repeating the request changes nothing.

    Raises PreconditionFailed (NO_FORMER_POLICY) if there is none.
    """
    former = _by_request(session, job, request_id)
    if former is not None:
        return former
    alias = alias or default_alias(job)
    found = stack(session, job.uid, alias)
    if len(found) < 2:
        state = "was never promoted to" if not found else "has pointed at one policy only"
        message = (
            f"the alias {alias} of {job.job_id} {state}: there is none before it to go back to"
        )
        raise PreconditionFailed(message, reason="NO_FORMER_POLICY")
    target, left = found[-2], found[-1]
    row = _row(session, job, alias, Decision.ROLLED_BACK, reason, now)
    row.agent, row.prefix, row.checkpoint = target.agent, target.prefix, target.checkpoint
    row.request_id = request_id or None
    _tell(session, job, row)
    message = f"{alias} is {target.agent} again, no longer {left.agent}" + (
        f": {reason}" if reason else ""
    )
    outbox.record(
        session,
        job,
        "CHAMPION_ROLLED_BACK",
        message,
        now=now,
        subject=target.agent,
        **_details(row),
    )
    return row


def keep(
    session: Session,
    job: JobRow,
    decision: Decision,
    generation: Generation,
    reason: str,
    now: datetime,
) -> PromotionRow:
    """Record that the job's own alias stays unchanged (KEPT or FAILED), and why."""
    row = _row(session, job, default_alias(job), decision, reason, now, generation)
    present = champion(session, job)
    if present is not None:
        row.agent, row.prefix, row.checkpoint = present.agent, present.prefix, present.checkpoint
    kind = "CHALLENGER_LOST" if decision is Decision.KEPT else "GENERATION_FAILED"
    message = f"generation {generation.number}: {reason}"
    outbox.record(session, job, kind, message, now=now, subject=generation.child, **_details(row))
    return row


def before(
    session: Session, job: JobRow, alias: str, token: str, limit: int
) -> Sequence[PromotionRow]:
    """Decisions before a page's token, newest first."""
    query = select(PromotionRow).where(PromotionRow.job_uid == job.uid)
    if alias:
        query = query.where(PromotionRow.alias == alias)
    if token:
        if not (token.isascii() and token.isdecimal() and len(token) <= 18):
            message = "is not a page token of this server: list again from the first page"
            raise InvalidInput(
                f"page_token {message}", violations=[FieldViolation("page_token", message)]
            )
        query = query.where(PromotionRow.position < int(token))
    return session.scalars(query.order_by(PromotionRow.position.desc()).limit(limit)).all()


def pointed_at(session: Session, *, besides: Collection[str] = ()) -> dict[str, JobRow]:
    """The job whose alias points at, or may roll back to, each checkpoint prefix; without jobs in
    `besides` (uids)."""
    rows = session.execute(select(PromotionRow.job_uid, PromotionRow.alias).distinct()).all()
    found: dict[str, JobRow] = {}
    for job_uid, alias in rows:
        if job_uid not in besides:
            job = jobs.get_by_uid(session, job_uid)
            found |= dict.fromkeys((row.prefix for row in stack(session, job_uid, alias)), job)
    return found


def _by_request(session: Session, job: JobRow, request_id: str) -> PromotionRow | None:
    if not request_id:
        return None
    query = select(PromotionRow).where(
        PromotionRow.job_uid == job.uid, PromotionRow.request_id == request_id
    )
    return session.scalar(query)


def _row(
    session: Session,
    job: JobRow,
    alias: str,
    decision: Decision,
    reason: str,
    now: datetime,
    generation: Generation | None = None,
) -> PromotionRow:
    newest = session.scalar(
        select(func.max(PromotionRow.position)).where(PromotionRow.job_uid == job.uid)
    )
    row = PromotionRow(
        job_uid=job.uid,
        position=(newest or 0) + 1,
        alias=alias,
        decision=decision,
        agent="",
        prefix="",
        reason=reason,
        create_time=now,
    )
    if generation is not None:
        row.generation, row.child, row.data_sha256 = (
            generation.number,
            generation.child,
            generation.data_sha256,
        )
        row.champion = generation.champion and encode(generation.champion)
        row.challenger = generation.challenger and encode(generation.challenger)
    session.add(row)
    return row


def _tell(session: Session, job: JobRow, row: PromotionRow) -> None:
    job.revision += 1
    session.flush()
    outbox.set_alias(
        session, job, row.alias, policy_of(row), row.reason, f"promotion-{row.position}"
    )


def _require_board(session: Session, job: JobRow, checkpoint: CheckpointRow, now: datetime) -> None:
    """A continuous job's environment is not inspected; its leaderboard takes that of the first
    promoted policy."""
    if job.description is not None:
        return
    if not job.is_continuous:
        message = f"{job.job_id} has no leaderboard yet: its environment is being inspected"
        raise PreconditionFailed(message, reason="NO_LEADERBOARD")
    jobs.describe(session, job, description_of(jobs.get_by_uid(session, checkpoint.job_uid)), now)


def _details(row: PromotionRow) -> dict[str, object]:
    details: dict[str, object] = {
        "alias": row.alias,
        "position": row.position,
        "checkpoint": last_part(row.prefix[:-1]),
    }
    if row.generation:
        details |= {"generation": row.generation, "data_sha256": row.data_sha256}
    for name, evaluation in (("champion", champion_of(row)), ("challenger", challenger_of(row))):
        if evaluation is not None:
            details |= {
                f"{name}_{key}": value
                for key, value in evaluation_works.numbers(evaluation).items()
            }
    return details


def is_there(session: Session, project: str, prefix: str) -> bool:
    """Whether a checkpoint of the project exists and is not known to be damaged."""
    checkpoint = session.get(CheckpointRow, prefix)
    return checkpoint is not None and not checkpoint.refused and of_project(prefix, project)
