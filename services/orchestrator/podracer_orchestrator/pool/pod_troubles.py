"""What keeps pods from working, told to the jobs that wait for them: each once, until it changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer_orchestrator import events
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.state import ACTIVE_STATES
from podracer_orchestrator.pool import pods
from podracer_orchestrator.pool.backend import Trouble
from podracer_orchestrator.tables import EventRow, JobRow, PodRow

AGAIN = timedelta(seconds=60)
"""A cluster's words change with its numbers: no job hears of the same kind of trouble more often."""
_MESSAGE_CHARACTERS = 2000


def note(session: Session, troubles: Mapping[str, Trouble | None], now: datetime) -> None:
    """Write it to the pods, by name, and once to the log of each active job that they may serve."""
    active = jobs.in_states(session, ACTIVE_STATES)
    told: set[tuple[str, str]] = set()  # of many pods with the same trouble the first one speaks
    for name, trouble in troubles.items():
        pod = session.get(PodRow, name)
        if pod is None or pod.state in pods.GONE:
            continue
        pods.set_message(session, pod, trouble.message[:_MESSAGE_CHARACTERS] if trouble else "")
        if trouble is None or not trouble.kind:
            continue
        for job in active:
            if (job.uid, trouble.kind) not in told and pods.can_serve(pod, job):
                told.add((job.uid, trouble.kind))
                _tell(session, job, pod.name, trouble, now)


def _tell(session: Session, job: JobRow, pod: str, trouble: Trouble, now: datetime) -> None:
    message = trouble.message[:_MESSAGE_CHARACTERS]
    query = select(EventRow).where(EventRow.job_uid == job.uid, EventRow.kind == trouble.kind)
    last = session.scalar(query.order_by(EventRow.position.desc()).limit(1))
    if last is None or (last.message != message and now - last.time >= AGAIN):
        events.record(session, job, trouble.kind, message, now=now, subject=pod)
