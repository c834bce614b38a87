"""Checkpoints that are not what was committed any more: whoever would begin from one begins from the one before it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer_core.errors import DataCorrupted
from podracer_core.rpc.resource_names import last_part
from podracer_core.storage.layout import CheckpointPlace
from podracer_orchestrator import events
from podracer_orchestrator.progress import checkpoint_reference, members_of
from podracer_orchestrator.tables import CheckpointRow, JobRow, WorkRow

CHECKPOINT_REFUSED = "CHECKPOINT_REFUSED"


def refuse(session: Session, job: JobRow, work: WorkRow, problem: cohort_pb2.Problem, now: datetime) -> bool:
    """Remember that a checkpoint of the job is bad, if that is what the problem says; whether it is.

    The members of `work` that stand there stand at the one before it from now on.
    """
    if problem.reason != DataCorrupted.reason:
        return False
    place = CheckpointPlace.of_object(problem.subject)
    row = None if place is None else session.get(CheckpointRow, place.prefix)
    if row is None or row.job_uid != job.uid:
        return False
    known, row.refused = row.refused, True
    session.flush()
    before = _before(session, row)
    for member in members_of(session, work.id):
        if member.checkpoint == row.prefix:
            member.checkpoint = None if before is None else before.prefix
    if known:  # another pod has found it, too
        return True
    instead = "its beginning" if before is None else f"its checkpoint {before.checkpoint_id}"
    message = f"{problem.message}; {last_part(row.agent)} goes on from {instead}"
    events.record(session, job, CHECKPOINT_REFUSED, message, now=now, subject=row.agent, prefix=row.prefix)
    return True


def begin_soundly(session: Session, agent: agent_pb2.AgentSpec) -> None:
    """Put the checkpoints before them in place of those that were refused; an agent with none left begins fresh."""
    if agent.HasField("resume"):
        sound = _sound(session, agent.resume)
        agent.ClearField("resume") if sound is None else agent.resume.CopyFrom(sound)
    start = agent.initialization
    parents = [(parent, _sound(session, parent.checkpoint)) for parent in start.parents]
    had_parents = bool(parents)
    del start.parents[:]
    for parent, sound in parents:
        if sound is not None:
            parent.checkpoint.CopyFrom(sound)
            start.parents.append(parent)
    if len(start.parents) == 1 and start.kind == agent_pb2.INITIALIZATION_KIND_FUSE:
        start.kind = agent_pb2.INITIALIZATION_KIND_COPY
    if not agent.HasField("resume") and not start.parents and (had_parents or not start.kind):
        start.Clear()
        start.kind = agent_pb2.INITIALIZATION_KIND_FRESH


def in_place_of(session: Session, job_uid: str, prefixes: Collection[str]) -> set[str]:
    """The checkpoints that are used instead of those of `prefixes` that were refused."""
    refused = select(CheckpointRow).where(CheckpointRow.job_uid == job_uid, CheckpointRow.refused.is_(True))
    befores = [_before(session, row) for row in session.scalars(refused).all() if row.prefix in prefixes]
    return {before.prefix for before in befores if before is not None}


def _sound(session: Session, reference: agent_pb2.CheckpointReference) -> agent_pb2.CheckpointReference | None:
    row = session.get(CheckpointRow, reference.prefix)
    if row is None or not row.refused:
        return reference
    before = _before(session, row)
    return None if before is None else checkpoint_reference(before)


def _before(session: Session, row: CheckpointRow) -> CheckpointRow | None:
    """The agent's newest checkpoint before this one that is not refused."""
    query = select(CheckpointRow).where(
        CheckpointRow.job_uid == row.job_uid,
        CheckpointRow.agent == row.agent,
        CheckpointRow.env_steps < row.env_steps,
        CheckpointRow.refused.is_(False),
    )
    return session.scalar(query.order_by(CheckpointRow.env_steps.desc(), CheckpointRow.fence.desc()).limit(1))
