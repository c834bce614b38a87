"""Pods in the database: the ones that the pool makes and the ones that come by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer_core.errors import Exhausted
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import ACTIVE_STATES, JobState, PodKind, jobs, plan_of
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import lease_ends
from podracer_orchestrator.pool.backend import Trouble
from podracer_orchestrator.tables import EventRow, JobRow, LeaseRow, LeaseState, PodRow, PodState
from podracer_orchestrator.transactions import job_topic, touch
from podracer_platform.rpc import resource_names as names

STATIC = "static"
"""Backend of the pods that come by themselves."""
GONE = (PodState.STOPPED,)
ABSENT = (PodState.STOPPED, PodState.DRAINING, PodState.LOST)
SILENCE = timedelta(seconds=90)
"""A pod that asks for nothing for so long is taken for lost; it asks at least every 30 s."""
FORGOTTEN = timedelta(days=1)
"""A lost pod that came by itself is forgotten after this time."""
MOST_STATIC = 10_000
TROUBLE_AGAIN = timedelta(seconds=60)
"""A cluster's words change with its numbers: no job hears of the same kind of trouble more
often."""
_MESSAGE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class PodReport:
    """A learner's report of itself when it asks for work."""

    name: str
    instance_id: str
    layout: str
    address: str
    build: bytes


def make(session: Session, new: Mapping[str, PodKind], backend: str, now: datetime) -> None:
    """The rows of pods that the pool is about to start; stored before any process is, so that none
    is forgotten."""
    made = []
    for name, kind in new.items():
        pod = session.get(PodRow, name)
        if pod is None:
            pod = PodRow(name=name, project=names.parse("pod", name, "pod").project)
            session.add(pod)
        pod.backend, pod.kind, pod.layout = backend, kind.name, kind.layout
        pod.state, pod.message, pod.instance_id = PodState.STARTING, "", ""
        pod.restart_count, pod.create_time, pod.last_seen_time = 0, now, now
        made.append(pod)
    session.flush()
    _touch_jobs(session, *made)


def check_in(session: Session, report: PodReport, now: datetime) -> PodRow:
    """Note that a learner asks for work. An unknown pod is recorded: it serves any job. Raises
    Exhausted if there are too many."""
    pod = session.get(PodRow, report.name)
    if pod is None:
        own, old = PodRow.backend == STATIC, PodRow.last_seen_time < now - FORGOTTEN
        session.execute(
            delete(PodRow).where(own, old, PodRow.state.in_((PodState.LOST, PodState.STOPPED)))
        )
        if session.scalars(select(func.count()).where(own)).one() >= MOST_STATIC:
            raise Exhausted(
                f"there are {MOST_STATIC} pods that came by themselves", reason="TOO_MANY_PODS"
            )
        project = names.parse("pod", report.name, "pod").project
        pod = PodRow(
            name=report.name, project=project, backend=STATIC, state=PodState.IDLE, create_time=now
        )
        pod.restart_count, pod.kind = 0, ""
        session.add(pod)
    elif pod.backend == STATIC and pod.instance_id not in ("", report.instance_id):
        pod.restart_count += 1
    if pod.state in (PodState.STARTING, PodState.LOST) or (
        pod.backend == STATIC and pod.state == PodState.STOPPED
    ):
        pod.state, pod.message = PodState.IDLE, ""
        _touch_jobs(session, pod)
    pod.instance_id, pod.layout = report.instance_id, report.layout
    pod.address, pod.build, pod.last_seen_time = report.address, report.build, now
    return pod


def lose(
    session: Session, name: str, problem: cohort_pb2.Problem | None, why: str, now: datetime
) -> list[int]:
    """A pod's learner is gone: its leases end at once. Returns their fences."""
    held = leases.held(session, pod=name)
    for lease in held:
        lease_ends.lose(session, lease, LeaseState.EXPIRED, why, now, problem=problem)
    pod = session.get(PodRow, name)
    if pod is not None and pod.state not in (PodState.DRAINING, PodState.STOPPED):
        pod.state, pod.message = PodState.LOST, why
        _touch_jobs(session, pod)
    return [lease.fence for lease in held]


def set_state(session: Session, name: str, state: PodState, message: str = "") -> None:
    """Say where a pod stands."""
    pod = session.get(PodRow, name)
    if pod is None or pod.state == state:
        return
    pod.state, pod.message = state, message
    _touch_jobs(session, pod)


def note_restart(
    session: Session, pod: PodRow, concerned: Iterable[JobRow], why: str, now: datetime
) -> None:
    """A process of a pod is started again, which concerns some jobs."""
    pod.restart_count += 1
    pod.message = why
    for job in concerned:
        outbox.record(session, job, "POD_RESTARTED", why, now=now, subject=pod.name)


def note_troubles(session: Session, troubles: Mapping[str, Trouble | None], now: datetime) -> None:
    """Write to rows of pods what keeps these from working, and once to the log of each active job
    they may serve."""
    active = jobs.in_states(session, ACTIVE_STATES)
    changed: list[PodRow] = []
    told: set[tuple[str, str]] = set()  # of many pods with the same trouble the first one speaks
    for name, trouble in troubles.items():
        pod = session.get(PodRow, name)
        if pod is None or pod.state in GONE:
            continue
        message = trouble.message[:_MESSAGE_CHARACTERS] if trouble else ""
        if pod.message != message:
            pod.message = message
            changed.append(pod)
        if trouble is None or not trouble.kind:
            continue
        for job in active:
            if (job.uid, trouble.kind) not in told and can_serve(pod, job):
                told.add((job.uid, trouble.kind))
                _tell(session, job, pod, trouble, now)
    _touch_jobs(session, *changed)


def may_read_log(session: Session, pod: PodRow, job: JobRow) -> bool:
    """Whether a job may see the end of a pod's log, which has the output of the users' code that
    ran there."""
    return not pod.instance_id or any(
        lease.job_uid == job.uid for lease in leases.held(session, pod=pod.name)
    )


def can_serve(pod: PodRow, job: JobRow) -> bool:
    """Whether a pod may work for a job: one of the pool for any job of its kind, another for those
    of its project."""
    return (
        pod.project == job.project if pod.backend == STATIC else pod.kind == plan_of(job).kind.name
    )


def count_serving(session: Session, job: JobRow) -> int:
    """How many pods may work for a job, now or soon; they may work for others too."""
    query = (
        select(func.count()).select_from(PodRow).where(PodRow.state.not_in(ABSENT), _serves(job))
    )
    return session.scalars(query).one()


def of_job(session: Session, job: JobRow) -> Sequence[PodRow]:
    """A job's pods, by name: those that hold a lease of it, and while it is active those that may
    get one."""
    busy = select(LeaseRow.pod).where(LeaseRow.state == LeaseState.HELD)
    wanted: ColumnElement[bool] = PodRow.name.in_(busy.where(LeaseRow.job_uid == job.uid))
    if JobState(job.state) in ACTIVE_STATES and not job.is_continuous:
        has_left = (PodRow.state == PodState.DRAINING) | (
            (PodRow.state == PodState.LOST) & (PodRow.backend == STATIC)
        )
        wanted |= ~has_left & PodRow.name.not_in(busy) & _serves(job)
    query = select(PodRow).where(PodRow.state.not_in(GONE), wanted)
    return session.scalars(query.order_by(PodRow.name)).all()


def of_project(session: Session, project: str, after: str, limit: int) -> Sequence[PodRow]:
    """The pods of a project that are there, and those that work for a job of it, by name, after one
    name."""
    holders = select(LeaseRow.pod).join(JobRow, JobRow.uid == LeaseRow.job_uid)
    holders = holders.where(LeaseRow.state == LeaseState.HELD, JobRow.project == project)
    query = select(PodRow).where((PodRow.project == project) | PodRow.name.in_(holders))
    query = query.where(PodRow.name > after, PodRow.state.not_in(GONE))
    return session.scalars(query.order_by(PodRow.name).limit(limit)).all()


def of_backend(session: Session, backend: str) -> Sequence[PodRow]:
    """The pods that a backend has made and that are there, oldest first."""
    found = session.scalars(
        select(PodRow).where(PodRow.backend == backend, PodRow.state.not_in(GONE))
    ).all()
    return sorted(found, key=lambda pod: (pod.create_time, len(pod.name), pod.name))


def silent(session: Session, now: datetime) -> Sequence[PodRow]:
    """Idle pods that have not asked for work for too long."""
    query = select(PodRow).where(
        PodRow.state == PodState.IDLE, PodRow.last_seen_time < now - SILENCE
    )
    return session.scalars(query).all()


def _serves(job: JobRow) -> ColumnElement[bool]:
    """`can_serve` as the database sees it."""
    by_itself = PodRow.backend == STATIC
    return (by_itself & (PodRow.project == job.project)) | (
        ~by_itself & (PodRow.kind == plan_of(job).kind.name)
    )


def _touch_jobs(session: Session, *changed: PodRow) -> None:
    """Tell the watchers of the jobs that see these pods; of many there are few kinds."""
    if not changed:
        return
    held = leases.held(session, pod=changed[0].name) if len(changed) == 1 else leases.held(session)
    kinds = {(pod.backend, pod.kind, pod.project): pod for pod in changed}
    own = {pod.name for pod in changed}
    holders = {lease.job_uid for lease in held if lease.pod in own}
    active = jobs.in_states(session, ACTIVE_STATES)
    others = {job.uid for job in active if any(can_serve(pod, job) for pod in kinds.values())}
    touch(session, *map(job_topic, holders | others))


def _tell(session: Session, job: JobRow, pod: PodRow, trouble: Trouble, now: datetime) -> None:
    said = trouble.said if may_read_log(session, pod, job) else ""
    message = f"{trouble.message}{said}"[:_MESSAGE_CHARACTERS]
    query = select(EventRow).where(EventRow.job_uid == job.uid, EventRow.kind == trouble.kind)
    last = session.scalar(query.order_by(EventRow.position.desc()).limit(1))
    if last is None or (last.message != message and now - last.time >= TROUBLE_AGAIN):
        outbox.record(session, job, trouble.kind, message, now=now, subject=pod.name)
