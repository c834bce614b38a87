"""Pods in the database: the ones that the pool makes and the ones that come by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer_orchestrator import events, leases, names, works
from podracer_orchestrator.changes import job_topic, touch
from podracer_orchestrator.tables import JobRow, LeaseState, PodRow, PodState

GONE = (PodState.STOPPED,)
_ABSENT = (PodState.STOPPED, PodState.DRAINING, PodState.LOST)
SILENCE = timedelta(seconds=90)
"""A pod that asks for nothing for so long is taken for lost; it asks at least every 30 s."""


@dataclass(frozen=True, slots=True)
class PodReport:
    """What a learner says of itself when it asks for work."""

    name: str
    instance_id: str
    layout: str
    address: str
    build: bytes


def make(session: Session, job: JobRow, name: str, backend: str, layout: str, now: datetime) -> PodRow:
    """The row of a pod that the pool is about to start; stored before any process is, so that none is forgotten."""
    pod = session.get(PodRow, name)
    if pod is None:
        pod = PodRow(name=name, project=job.project, create_time=now)
        session.add(pod)
    else:
        pod.restart_count += 1
    pod.job_uid, pod.backend, pod.layout = job.uid, backend, layout
    pod.state, pod.message, pod.instance_id, pod.last_seen_time = PodState.STARTING, "", "", now
    touch(session, job_topic(job.uid))
    session.flush()
    return pod


def check_in(session: Session, report: PodReport, now: datetime) -> PodRow:
    """Note that a learner asks for work. A pod that nobody has made is recorded: it serves any job."""
    pod = session.get(PodRow, report.name)
    if pod is None:
        project = names.parse("pod", report.name, "pod").project
        pod = PodRow(name=report.name, project=project, backend="static", state=PodState.IDLE, create_time=now)
        pod.restart_count = 0
        session.add(pod)
    elif pod.backend == "static" and pod.instance_id not in ("", report.instance_id):
        pod.restart_count += 1
    if pod.state in (PodState.STARTING, PodState.LOST) or (pod.backend == "static" and pod.state == PodState.STOPPED):
        pod.state, pod.message = PodState.IDLE, ""
        if pod.job_uid is not None:
            touch(session, job_topic(pod.job_uid))
    pod.instance_id, pod.layout = report.instance_id, report.layout
    pod.address, pod.build, pod.last_seen_time = report.address, report.build, now
    session.flush()
    return pod


def lose(session: Session, name: str, problem: cohort_pb2.Problem | None, why: str, now: datetime) -> list[int]:
    """A pod's learner is gone: its leases end at once. Returns their fences."""
    held = leases.held(session, pod=name)
    for lease in held:
        works.lose(session, lease, LeaseState.EXPIRED, why, now, problem=problem)
    pod = session.get(PodRow, name)
    if pod is not None and pod.state != PodState.STOPPED:
        pod.state, pod.message = PodState.LOST, why
        if pod.job_uid is not None:
            touch(session, job_topic(pod.job_uid))
    return [lease.fence for lease in held]


def set_state(session: Session, name: str, state: PodState, message: str = "") -> None:
    """Say where a pod stands."""
    pod = session.get(PodRow, name)
    if pod is None or pod.state == state:
        return
    pod.state, pod.message = state, message
    if pod.job_uid is not None:
        touch(session, job_topic(pod.job_uid))


def note_restart(session: Session, name: str, why: str, now: datetime) -> None:
    """A process of a pod is started again."""
    pod = session.get(PodRow, name)
    if pod is None:
        return
    pod.restart_count += 1
    pod.message = why
    job = session.get(JobRow, pod.job_uid) if pod.job_uid is not None else None
    if job is not None:
        events.record(session, job, "POD_RESTARTED", why, now=now, subject=name)


def serving(session: Session, job: JobRow) -> Sequence[PodRow]:
    """The pods among which a job's work is shared: those made for it, or where none were those that serve any job."""
    query = select(PodRow).where(PodRow.state.not_in(_ABSENT))
    own = session.scalars(query.where(PodRow.job_uid == job.uid)).all()
    return own or session.scalars(query.where(PodRow.job_uid.is_(None), PodRow.project == job.project)).all()


def of_job(session: Session, job_uid: str) -> Sequence[PodRow]:
    """The pods of a job that are there: its own, and those that hold a lease of it; by name."""
    holders = {lease.pod for lease in leases.held(session, job_uid=job_uid)}
    query = select(PodRow).where((PodRow.job_uid == job_uid) | PodRow.name.in_(holders))
    return session.scalars(query.where(PodRow.state.not_in(GONE)).order_by(PodRow.name)).all()


def of_project(session: Session, project: str, after: str, limit: int) -> Sequence[PodRow]:
    """The pods of a project that are there, by name, after one name."""
    query = select(PodRow).where(PodRow.project == project, PodRow.name > after, PodRow.state.not_in(GONE))
    return session.scalars(query.order_by(PodRow.name).limit(limit)).all()


def of_backend(session: Session, backend: str) -> Sequence[PodRow]:
    """The pods that a backend has made and that are there."""
    query = select(PodRow).where(PodRow.backend == backend, PodRow.state.not_in(GONE))
    return session.scalars(query.order_by(PodRow.name)).all()


def silent(session: Session, now: datetime) -> Sequence[PodRow]:
    """Idle pods that have not asked for work for too long."""
    query = select(PodRow).where(PodRow.state == PodState.IDLE, PodRow.last_seen_time < now - SILENCE)
    return session.scalars(query).all()
