"""Jobs in the database: creation, lookup, and all changes of state."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2, environment_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import cut_warning, evaluation_steps, unreachable
from podracer_core.errors import AlreadyExists, InvalidInput, NotFound
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import founders
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.jobs.quotas import UNLIMITED, Quota, require_job
from podracer_orchestrator.jobs.state import (
    FINAL_STATES,
    JobOutcome,
    JobSignal,
    JobState,
    next_state,
)
from podracer_orchestrator.stored_messages import encode, spec_of
from podracer_orchestrator.tables import ContinuationRow, JobRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import GENERATION, POOL, WORK, job_topic, touch
from podracer_platform.messages import environment_from_message, seconds_from_duration
from podracer_platform.rpc import job_name
from podracer_platform.telemetry import current


@dataclass(frozen=True, slots=True)
class NewJob:
    """A checked request for a job. `description` is None if the environment has to be inspected
    first; `warnings` are for the user. A generation has its continuous job's uid as `parent_uid`,
    and a number."""

    project: str
    job_id: str
    spec: job_pb2.JobSpec
    description: environment_pb2.EnvironmentDescription | None = None
    request_id: str = ""
    warnings: tuple[str, ...] = ()
    parent_uid: str | None = None
    generation: int = 0
    request_digest: str = ""


def create(session: Session, new: NewJob, now: datetime, quota: Quota = UNLIMITED) -> JobRow:
    """Store a job, or return the one that the same request made before.

    Looks up data sets by name; those of a continuous job only have to exist. Raises AlreadyExists
    for a taken id, InvalidInput for files that were not uploaded and for a request_id that another
    request had, Exhausted if one of the project's quotas is used."""
    if new.request_id:
        query = select(JobRow).where(
            JobRow.project == new.project, JobRow.request_id == new.request_id
        )
        if (former := session.scalar(query)) is not None:
            if former.request_digest not in ("", new.request_digest):
                raise InvalidInput.of(
                    "request_id", "was used for another job", reason="REQUEST_ID_REUSED"
                )
            return former
    if _find(session, new.project, new.job_id) is not None:
        name = job_name(new.project, new.job_id)
        raise AlreadyExists(f"there is a job {name} already", job=name)
    require_job(session, new.project, quota)
    spec = resolved(session, new.project, new.spec)
    is_continuous = spec.HasField("continuous")
    state = JobState.VALIDATING if new.description is None else JobState.PENDING
    job = JobRow(
        uid=uuid.uuid4().hex,
        project=new.project,
        job_id=new.job_id,
        request_id=new.request_id or None,
        request_digest=new.request_digest,
        spec=encode(spec),
        state=JobState.RUNNING if is_continuous else state,
        create_time=now,
        start_time=now if is_continuous else None,
        traceparent=current().traceparent,
        is_continuous=is_continuous,
        parent_uid=new.parent_uid,
        generation=new.generation,
    )
    session.add(job)
    session.flush()
    founders.keep(session, job, spec)
    outbox.record(
        session, job, "JOB_CREATED", f"{job_name(job.project, job.job_id)} was accepted", now=now
    )
    for warning in new.warnings:
        message = f"{warning}: the round is shortened to it, and no agent is replaced"
        outbox.record(session, job, "ROUND_SHORTENED", message, now=now)
    target = spec.objective.target_return if spec.objective.HasField("target_return") else None
    for warning in unreachable(environment_from_message(spec.environment), target):
        outbox.record(session, job, "ENVIRONMENT_WARNING", warning, now=now)
    if is_continuous:
        session.add(ContinuationRow(job_uid=job.uid))
    elif new.description is None:
        add_work(session, job, WorkKind.INSPECT, WorkState.READY, now)
    if new.description is not None:
        cut_episodes(session, job, new.description, now)
        describe(session, job, new.description, now)
    touch(session, POOL, WORK, *_generation_topics(job))
    return job


def resolved(session: Session, project: str, spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
    """A checked spec with looked-up data sets and founders. Raises InvalidInput."""
    return founders.with_founders(session, project, founders.with_files(session, project, spec))


def describe(
    session: Session,
    job: JobRow,
    description: environment_pb2.EnvironmentDescription,
    now: datetime,
) -> None:
    """Store the description of the job's environment, with its first founder's origin; create its
    leaderboard."""
    job.description = encode(description)
    fitting = founders.fitting(session, job)
    if (
        fitting
        and (trained := founders.trained_in(session, fitting[0].checkpoint.prefix)) is not None
    ):
        description.observation_origin[:] = trained.observation_origin
        job.description = encode(description)
    for left_out in (each for each in spec_of(job).founders if each not in fitting):
        message = (
            f"no agent starts from {left_out.agent}: it was trained with other observations "
            "or actions"
        )
        outbox.record(session, job, "FOUNDER_LEFT_OUT", message, now=now)
    outbox.create_leaderboard(session, job, fitting)


def cut_episodes(
    session: Session,
    job: JobRow,
    description: environment_pb2.EnvironmentDescription,
    now: datetime,
) -> None:
    """Write into the description where evaluation cuts the episodes of an environment without a
    time limit: by the budget of the job, or of a round if that is shorter."""
    if description.max_episode_steps:
        return
    plan, environment = plan_of(job), spec_of(job).environment
    seconds = [
        limit for limit in (plan.budget.active_time_s, plan.round.time_s) if limit is not None
    ]
    step_s = seconds_from_duration(description.step_time)
    steps = evaluation_steps(
        plan.episodes, plan.budget.env_steps, min(seconds, default=None), step_s
    )
    description.evaluation_steps = steps
    message = cut_warning(environment.id or environment.entry_point, steps)
    outbox.record(session, job, "NO_TIME_LIMIT", message, now=now)


def add_work(
    session: Session, job: JobRow, kind: WorkKind, state: WorkState, now: datetime, places: int = 0
) -> WorkRow:
    """Store a new piece of work."""
    work = WorkRow(
        id=uuid.uuid4().hex, job_uid=job.uid, kind=kind, state=state, places=places, create_time=now
    )
    work.attempts = 0
    session.add(work)
    session.flush()
    return work


def get(session: Session, project: str, job_id: str) -> JobRow:
    """The job of a name. Raises NotFound."""
    job = _find(session, project, job_id)
    if job is None:
        name = job_name(project, job_id)
        # What people remember is the name in their file; the job's own has a random ending.
        same = select(JobRow.job_id).where(
            JobRow.project == project, JobRow.job_id.like(f"{job_id}-______")
        )
        newest = session.scalar(same.order_by(JobRow.create_time.desc()).limit(1))
        hint = f"; the newest whose file says {job_id} is {newest}" if newest is not None else ""
        raise NotFound(f"there is no job {name}{hint}", job=name)
    return job


def is_taken(session: Session, project: str, job_id: str) -> bool:
    """Whether there is a job of that name."""
    return _find(session, project, job_id) is not None


def children(session: Session, job: JobRow) -> Sequence[JobRow]:
    """The generations of a continuous job, oldest first."""
    if not job.is_continuous:
        return []
    return session.scalars(
        select(JobRow).where(JobRow.parent_uid == job.uid).order_by(JobRow.generation)
    ).all()


def newest_best(session: Session, job: JobRow) -> JobRow | None:
    """The newest generation that has a candidate."""
    return next(
        (child for child in reversed(children(session, job)) if child.best is not None), None
    )


def get_by_uid(session: Session, uid: str) -> JobRow:
    """The job of a uid that the caller has from the database. Raises NotFound if it was deleted
    since."""
    job = session.get(JobRow, uid)
    if job is None:
        raise NotFound(f"the job with uid {uid} is gone", uid=uid)
    return job


def load(session: Session, uids: Collection[str]) -> Sequence[JobRow]:
    """Several jobs at once."""
    return session.scalars(select(JobRow).where(JobRow.uid.in_(uids))).all()


def event_positions(session: Session, project: str) -> Mapping[str, int]:
    """The newest event of each job of a project by the job's uid, oldest job first."""
    query = select(JobRow.uid, JobRow.event_position).where(JobRow.project == project)
    return dict(session.execute(query.order_by(JobRow.create_time, JobRow.uid)).all())


_IN_STATES = (
    select(JobRow)
    .where(JobRow.state.in_(bindparam("states", expanding=True)), JobRow.is_continuous.is_(False))
    .order_by(JobRow.create_time, JobRow.uid)
)


def in_states(session: Session, states: Collection[JobState]) -> Sequence[JobRow]:
    """The jobs in any of `states` that pods work for, oldest first: none works for a continuous job
    itself."""
    return session.scalars(_IN_STATES, {"states": [str(state) for state in states]}).all()


def signal(session: Session, job: JobRow, what: JobSignal, now: datetime) -> bool:
    """Take a job to its next state; True if the state changes. Raises PreconditionFailed if the
    signal is invalid."""
    is_described = job.is_continuous or job.description is not None
    state = next_state(
        JobState(job.state), what, described=is_described, started=job.start_time is not None
    )
    if state == job.state:
        return False
    job.state = state
    job.revision += 1
    if what is JobSignal.LEASED and job.start_time is None:
        job.start_time = now
    touch(session, POOL, WORK, job_topic(job.uid), *_generation_topics(job))
    return True


def succeed(
    session: Session, job: JobRow, outcome: JobOutcome, message: str, now: datetime
) -> None:
    """End a job successfully."""
    signal(session, job, JobSignal.SUCCEED, now)
    job.outcome = outcome
    _end(session, job, "JOB_SUCCEEDED", message, now)


def fail(session: Session, job: JobRow, problem: cohort_pb2.Problem, now: datetime) -> None:
    """End a job that cannot go on; `problem` says why."""
    signal(session, job, JobSignal.FAIL, now)
    job.problem = encode(problem)
    _end(session, job, "JOB_FAILED", problem.message, now)


def cancel(session: Session, job: JobRow, now: datetime) -> None:
    """Cancel a job and its generations for its user; nothing changes if it has already ended."""
    for child in children(session, job):
        cancel(session, child, now)
    if JobState(job.state) in FINAL_STATES:
        return
    signal(session, job, JobSignal.CANCEL, now)
    _end(session, job, "JOB_CANCELLED", "cancelled by its user", now)


def drop_waiting(session: Session, job: JobRow, now: datetime) -> None:
    """Drop the works of a job that no pod has."""
    waiting = (WorkState.PROPOSING, WorkState.READY)
    session.execute(
        update(WorkRow)
        .where(WorkRow.job_uid == job.uid, WorkRow.state.in_(waiting))
        .values(state=WorkState.DROPPED, end_time=now)
    )


def _end(session: Session, job: JobRow, kind: str, message: str, now: datetime) -> None:
    job.end_time = now
    drop_waiting(session, job, now)
    outbox.record(session, job, kind, message, now=now)


def _generation_topics(job: JobRow) -> Collection[str]:
    return (GENERATION,) if job.is_continuous or job.parent_uid is not None else ()


def _find(session: Session, project: str, job_id: str) -> JobRow | None:
    return session.scalar(select(JobRow).where(JobRow.project == project, JobRow.job_id == job_id))
