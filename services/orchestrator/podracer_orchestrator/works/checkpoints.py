"""The checkpoints that count, and the exact counters: the effect of a commit on a member's and a
job's steps and cost.

A pod reports totals since its lease began. What counts is `base` (committed before the lease) plus
that total, and a member's count only ever grows to a larger one: the same report twice, or an older
one after a newer one, adds nothing. A job's count is the sum of what its members' counts grew by,
in the same transaction.

A checkpoint that is not what was committed any more is refused: an agent begins from the one before
it instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
from podracer_core.storage import CheckpointPlace
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import JobOutcome
from podracer_orchestrator.stored_messages import checkpoint_reference
from podracer_orchestrator.tables import (
    CheckpointRow,
    JobRow,
    LeaseRow,
    MemberRow,
    WorkKind,
    WorkRow,
)
from podracer_orchestrator.transactions import job_topic, touch
from podracer_platform.rpc import Name, job_name, last_part

CHECKPOINT_REFUSED = "CHECKPOINT_REFUSED"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class MemberCommit:
    """A member's progress, in totals of its lease, and the checkpoint that holds it."""

    agent: str
    env_steps: int
    cost_s: float
    evaluation_cost_s: float
    checkpoint: agent_pb2.CheckpointReference


def agents_of(session: Session, work_ids: Sequence[str]) -> dict[str, list[str]]:
    """The agents of each work, in the order of its cohort."""
    query = select(MemberRow.work_id, MemberRow.agent).where(MemberRow.work_id.in_(work_ids))
    agents: dict[str, list[str]] = {}
    for work_id, agent in session.execute(query.order_by(MemberRow.work_id, MemberRow.position)):
        agents.setdefault(work_id, []).append(agent)
    return agents


def commit(
    session: Session,
    lease: LeaseRow,
    commits: Iterable[MemberCommit],
    now: datetime,
    besides: Iterable[tuple[str, agent_pb2.CheckpointReference]] = (),
) -> int:
    """Make checkpoints count; returns by how many environment steps the job has grown.

    `besides`: checkpoints of agents that count, too, but are not where they stand. The caller has
    checked that `lease` is held. Raises InvalidInput, and changes nothing, where an agent is none
    of the work's, a checkpoint lies where this lease may not write, or the lease only follows
    another."""
    require_lead(lease)
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    members = {member.agent: member for member in work.members}
    waiting, others = list(commits), list(besides)
    prefixes = [each.checkpoint.prefix for each in waiting] + [
        checkpoint.prefix for _, checkpoint in others
    ]
    known = {row.prefix: row for row in load_checkpoints(session, prefixes)}
    grown = 0
    for each in waiting:
        member = members.get(each.agent)
        if member is None:
            raise InvalidInput(
                f"{each.agent!r} is no member of this lease's cohort", agent=each.agent
            )
        _register(session, known, job, lease, each.agent, each.checkpoint, now)
        grown += _grow(job, member, each)
    for agent, checkpoint in others:
        _register(session, known, job, lease, agent, checkpoint, now)
    if grown:
        work.attempts = 0
        job.failed_works = 0
    touch(session, job_topic(job.uid))
    return grown


def require_lead(lease: LeaseRow) -> None:
    """Raise InvalidInput for a lease that follows another: what is trained belongs to the
    lead's."""
    if lease.kind == WorkKind.FOLLOW:
        message = (
            f"the lease {lease.id} follows another one; only that one's holder may report, "
            "commit and complete"
        )
        raise InvalidInput(message, reason="NOT_THE_LEAD")


_CHECKPOINTS = select(CheckpointRow).where(
    CheckpointRow.prefix.in_(bindparam("prefixes", expanding=True))
)


def load_checkpoints(session: Session, prefixes: Sequence[str]) -> Sequence[CheckpointRow]:
    """The committed checkpoints with these prefixes; prefixes without one are left out."""
    return session.scalars(_CHECKPOINTS, {"prefixes": prefixes}).all() if prefixes else []


def of_job(session: Session, job_uid: str, prefix: str) -> CheckpointRow | None:
    """The committed checkpoint of a job at a prefix that a pod has named; None for another job's,
    or if none counts."""
    row = session.get(CheckpointRow, prefix)
    return row if row is not None and row.job_uid == job_uid else None


def unjudged_policy(session: Session, job: JobRow) -> agent_pb2.Parent | None:
    """The furthest trained policy of a job that has ended without a judged one; None for another
    job."""
    if job.outcome != JobOutcome.NOTHING_JUDGED:
        return None
    query = select(CheckpointRow).where(
        CheckpointRow.job_uid == job.uid, CheckpointRow.refused.is_(False)
    )
    row = session.scalar(
        query.order_by(CheckpointRow.env_steps.desc(), CheckpointRow.fence.desc()).limit(1)
    )
    return (
        None
        if row is None
        else agent_pb2.Parent(agent=row.agent, checkpoint=checkpoint_reference(row))
    )


def find_checkpoint(session: Session, job: JobRow, name: Name) -> CheckpointRow:
    """The checkpoint of a job with that name. Raises NotFound where none counts."""
    agent = f"{job_name(name.project, name.job)}/agents/{name.agent}"
    query = select(CheckpointRow).where(
        CheckpointRow.job_uid == job.uid,
        CheckpointRow.agent == agent,
        CheckpointRow.checkpoint_id == name.id,
    )
    row = session.scalar(query)
    if row is None:
        raise NotFound(f"there is no committed checkpoint {name.id} of {agent}", name=name.id)
    return row


def _register(
    session: Session,
    rows: dict[str, CheckpointRow],
    job: JobRow,
    lease: LeaseRow,
    agent: str,
    checkpoint: agent_pb2.CheckpointReference,
    now: datetime,
) -> None:
    """Record that a checkpoint counts; nothing changes where it does already, as `rows` say. Raises
    InvalidInput for a wrong one."""
    place = _place(job, agent, checkpoint)
    known = rows.get(checkpoint.prefix)
    if known is not None and known.fence == lease.fence:
        # Its own writer has written it again, at the same step: what is there now counts.
        known.manifest_sha256, known.size_bytes = checkpoint.manifest_sha256, checkpoint.size_bytes
    if known is not None and known.manifest_sha256 == checkpoint.manifest_sha256:
        return
    if place.fence != lease.fence:
        raise _wrong(agent, checkpoint, f"its fence is {place.fence}, the lease's is {lease.fence}")
    rows[checkpoint.prefix] = CheckpointRow(
        prefix=checkpoint.prefix,
        job_uid=lease.job_uid,
        agent=agent,
        checkpoint_id=f"{place.env_steps}-{place.fence}",
        manifest_sha256=checkpoint.manifest_sha256,
        size_bytes=checkpoint.size_bytes,
        env_steps=place.env_steps,
        fence=place.fence,
        create_time=now,
    )
    session.add(rows[checkpoint.prefix])


def _place(job: JobRow, agent: str, checkpoint: agent_pb2.CheckpointReference) -> CheckpointPlace:
    """The place of a checkpoint. Raises InvalidInput if it is not a folder of this agent of this
    job."""
    if not _SHA256.fullmatch(checkpoint.manifest_sha256):
        raise _wrong(
            agent, checkpoint, "its manifest_sha256 is not 64 lower-case hexadecimal digits"
        )
    place = CheckpointPlace.parse(checkpoint.prefix)
    if (place.project, place.job_uid, place.agent) != (job.project, job.uid, last_part(agent)):
        raise _wrong(agent, checkpoint, "it is not in the agent's own folder")
    return place


def _wrong(agent: str, checkpoint: agent_pb2.CheckpointReference, problem: str) -> InvalidInput:
    return InvalidInput(
        f"checkpoint {checkpoint.prefix!r} of {agent}: {problem}",
        reason="WRONG_CHECKPOINT",
        agent=agent,
    )


def _grow(job: JobRow, member: MemberRow, each: MemberCommit) -> int:
    steps = member.base_env_steps + max(0, each.env_steps)
    if steps >= member.env_steps:  # an older report keeps the newer checkpoint
        member.checkpoint = each.checkpoint.prefix
    grown = max(0, steps - member.env_steps)
    cost_s = max(0.0, member.base_cost_s + each.cost_s - member.cost_s)
    evaluation_cost_s = max(
        0.0, member.base_evaluation_cost_s + each.evaluation_cost_s - member.evaluation_cost_s
    )
    member.env_steps += grown
    member.cost_s += cost_s
    member.evaluation_cost_s += evaluation_cost_s
    job.env_steps += grown
    job.cost_s += cost_s
    job.evaluation_cost_s += evaluation_cost_s
    return grown


def refuse(
    session: Session, job: JobRow, work: WorkRow, problem: cohort_pb2.Problem, now: datetime
) -> bool:
    """Remember that a checkpoint of the job is bad, if that is what the problem says; whether it
    is.

    The members of `work` that stand there stand at the one before it from now on.
    """
    if problem.reason != DataCorrupted.reason:
        return False
    place = CheckpointPlace.of_object(problem.subject)
    row = None if place is None else of_job(session, job.uid, place.prefix)
    if row is None:
        return False
    known, row.refused = row.refused, True
    session.flush()
    before = _before(session, row)
    for member in work.members:
        if member.checkpoint == row.prefix:
            member.checkpoint = None if before is None else before.prefix
    if known:  # another pod has found it, too
        return True
    instead = "its beginning" if before is None else f"its checkpoint {before.checkpoint_id}"
    message = f"{problem.message}; {last_part(row.agent)} goes on from {instead}"
    outbox.record(
        session, job, CHECKPOINT_REFUSED, message, now=now, subject=row.agent, prefix=row.prefix
    )
    return True


def begin_soundly(session: Session, agent: agent_pb2.AgentSpec) -> None:
    """Put the checkpoints before them in place of those that were refused; an agent with none left
    begins fresh."""
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
    refused = select(CheckpointRow).where(
        CheckpointRow.job_uid == job_uid, CheckpointRow.refused.is_(True)
    )
    befores = [
        _before(session, row) for row in session.scalars(refused).all() if row.prefix in prefixes
    ]
    return {before.prefix for before in befores if before is not None}


def _sound(
    session: Session, reference: agent_pb2.CheckpointReference
) -> agent_pb2.CheckpointReference | None:
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
    return session.scalar(
        query.order_by(CheckpointRow.env_steps.desc(), CheckpointRow.fence.desc()).limit(1)
    )
