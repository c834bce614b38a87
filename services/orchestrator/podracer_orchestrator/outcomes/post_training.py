"""The stages of a job after its training, one after the other."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from sqlalchemy.orm import Session

from podracer_orchestrator.continuous import contests
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.outcomes import ensembles, retraining
from podracer_orchestrator.tables import JobRow


class Stage(Protocol):
    """What each of these modules offers."""

    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Whether the job has it still to go through."""

    def has_begun(self, session: Session, job: JobRow) -> bool:
        """Whether its work was made."""

    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make its work."""


STAGES: tuple[Stage, ...] = (ensembles, retraining, contests)


def has_begun(session: Session, job: JobRow) -> bool:
    """Whether the job is at one of them, or has been through one: it trains no further round then."""
    return any(stage.has_begun(session, job) for stage in STAGES)


def next_stage(session: Session, job: JobRow) -> Stage | None:
    """The first stage that a job has still to go through."""
    return next((stage for stage in STAGES if stage.is_wanted(session, job)), None)


def begin(session: Session, job: JobRow, stage: Stage, now: datetime) -> None:
    """Begin a stage: nothing but its work is done for the job any more."""
    if stage.has_begun(session, job):
        return
    jobs.drop_waiting(session, job, now)
    job.rounds_over = True
    stage.begin(session, job, now)
