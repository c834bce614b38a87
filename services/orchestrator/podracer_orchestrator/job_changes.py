"""What clients may do with a job once it is there: list, change, suspend, delete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import Fenced, FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.rpc.resource_names import job_name
from podracer_core.storage.layout import CheckpointPlace, job_prefix
from podracer_orchestrator import events, founders, jobs, objective, outbox, promotions
from podracer_orchestrator.changes import POOL, WORK, job_topic, project_topic, touch
from podracer_orchestrator.job_filters import JobFilter
from podracer_orchestrator.job_plan import read_spec
from podracer_orchestrator.job_state import FINAL_STATES, JobSignal, JobState
from podracer_orchestrator.submission import changed
from podracer_orchestrator.tables import (
    CheckpointRow,
    ContinuationRow,
    EventRow,
    JobFileRow,
    JobRow,
    LeaseRow,
    MemberRow,
    PromotionRow,
    WorkRow,
)


@dataclass(frozen=True, slots=True)
class JobChange:
    """What is to change: the fields at `paths`, and whether the job is suspended (None: as it is)."""

    spec: job_pb2.JobSpec
    paths: Sequence[str] = ()
    suspend: bool | None = None
    etag: str = ""


def change(session: Session, job: JobRow, wanted: JobChange, now: datetime) -> None:
    """Carry out a change.

    Raises InvalidInput for a wrong field, PreconditionFailed for an ended job, Fenced for an
    outdated etag.
    """
    if wanted.etag and wanted.etag != str(job.revision):
        message = f"the job has changed since (etag {job.revision}, not {wanted.etag}): read it again"
        raise Fenced(message, reason="ETAG_OUTDATED")
    if JobState(job.state) in FINAL_STATES:
        raise PreconditionFailed(f"the job has ended ({job.state}): it cannot change", reason="JOB_ENDED")
    if wanted.paths:
        spec = changed(read_spec(job.spec), wanted.spec, wanted.paths)
        job.spec = spec.SerializeToString(deterministic=True)
        job.revision += 1
        scaled = f" ({spec.pod.min_count} to {spec.pod.max_count} pods)" if any(map(_is_of_pod, wanted.paths)) else ""
        events.record(session, job, "JOB_CHANGED", f"changed: {', '.join(wanted.paths)}{scaled}", now=now)
        if any(path.startswith("objective.max_") for path in wanted.paths):
            objective.reopen(session, job)
        objective.reconsider(session, job, now)
    if wanted.suspend is not None:
        _set_suspended(session, job, wanted.suspend, now)
    objective.finish_if_due(session, job, now)
    touch(session, POOL, WORK, job_topic(job.uid))


def page(
    session: Session, project: str, states: Sequence[str], wanted: JobFilter, token: str, size: int
) -> tuple[Sequence[JobRow], str]:
    """Jobs of a project, newest first, and the token of the next page (empty on the last one)."""
    query = select(JobRow).where(JobRow.project == project, *wanted.columns)
    if states:
        query = query.where(JobRow.state.in_(states))
    if token:
        last = session.get(JobRow, token)
        if last is None:
            raise InvalidInput(
                "page_token is none of this server's, or its job was deleted: start again",
                violations=[FieldViolation("page_token", "unknown")],
            )
        earlier = (JobRow.create_time == last.create_time) & (JobRow.uid < last.uid)
        query = query.where(or_(JobRow.create_time < last.create_time, earlier))
    query = query.order_by(JobRow.create_time.desc(), JobRow.uid.desc())
    if not wanted.checks:
        query = query.limit(size + 1)
    with closing(session.scalars(query.execution_options(yield_per=size + 1))) as jobs_found:
        found = list(islice(filter(wanted.takes, jobs_found), size + 1))
    return found[:size], found[size - 1].uid if len(found) > size else ""


def require_unneeded(session: Session, job: JobRow) -> Sequence[JobRow]:
    """The jobs that go with it when it is deleted: itself, and those that it has made.

    Raises PreconditionFailed unless they have ended and no other job needs their checkpoints: for an alias, or to start
    from.
    """
    family = [*jobs.children(session, job), job]
    for each in family:
        if JobState(each.state) not in FINAL_STATES:
            name = "the job" if each is job else each.job_id
            message = f"{name} is {each.state}: cancel it before it is deleted"
            raise PreconditionFailed(message, reason="JOB_NOT_ENDED", state=each.state)
    uids = {each.uid for each in family}
    others = promotions.pointed_at(session, besides=uids) | founders.needed(session)
    for prefix, user in others.items():
        if user.uid not in uids and CheckpointPlace.parse(prefix).job_uid in uids:
            name = job_name(user.project, user.job_id)
            message = f"{name} needs the checkpoint {prefix}: delete that job, or have its alias point elsewhere"
            raise PreconditionFailed(message, reason="CHECKPOINT_IN_USE", job=name)
    return family


def forget_checkpoints(session: Session, job: JobRow) -> list[str]:
    """Forget the checkpoints of an ended job, and of those that it has made, which are about to be deleted; returns
    where the objects of these jobs are.

    From here on no alias can be pointed at them, and nobody starts from them. Raises as `require_unneeded` does.
    """
    family = require_unneeded(session, job)
    for each in family:
        works = select(WorkRow.id).where(WorkRow.job_uid == each.uid)
        session.execute(update(MemberRow).where(MemberRow.work_id.in_(works)).values(checkpoint=None))
        session.execute(delete(CheckpointRow).where(CheckpointRow.job_uid == each.uid))
    return [job_prefix(each.project, each.uid) for each in family]


def remove(session: Session, job: JobRow) -> None:
    """Delete an ended job, and those that it has made, with all that belongs to them here.

    Their leaderboards follow through the outbox. Raises as `require_unneeded` does.
    """
    for each in require_unneeded(session, job):
        _remove(session, each)


def _remove(session: Session, job: JobRow) -> None:
    outbox.delete_leaderboard(session, job)
    works = select(WorkRow.id).where(WorkRow.job_uid == job.uid)
    session.execute(delete(MemberRow).where(MemberRow.work_id.in_(works)))
    for table in (LeaseRow, WorkRow, CheckpointRow, EventRow, JobFileRow, ContinuationRow, PromotionRow):
        session.execute(delete(table).where(table.job_uid == job.uid))
    session.delete(job)
    touch(session, job_topic(job.uid), project_topic(job.project), WORK, POOL)


def _is_of_pod(path: str) -> bool:
    return path.startswith("pod.")


def _set_suspended(session: Session, job: JobRow, suspend: bool, now: datetime) -> None:
    for child in jobs.children(session, job):
        if JobState(child.state) not in FINAL_STATES:
            _set_suspended(session, child, suspend, now)
    if not jobs.signal(session, job, JobSignal.SUSPEND if suspend else JobSignal.RESUME, now):
        return
    kind, message = ("JOB_SUSPENDED", "suspended") if suspend else ("JOB_RESUMED", f"resumed: {job.state}")
    events.record(session, job, kind, message, now=now)
