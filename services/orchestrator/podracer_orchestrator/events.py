"""A job's event log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from podracer_orchestrator.tables import EventRow, JobRow
from podracer_orchestrator.transactions import job_topic, project_topic, touch

_INSERT = insert(EventRow)


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
    session.connection().execute(_INSERT, event)
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
