"""What a job goes through once its training is over, one after the other."""

from __future__ import annotations

from sqlalchemy.orm import Session

from podracer_orchestrator import contests, ensembles, retraining
from podracer_orchestrator.tables import JobRow

STAGES = (ensembles, retraining, contests)
"""`is_wanted`: a job has it still to go through; `begin`; `has_begun`."""


def has_begun(session: Session, job: JobRow) -> bool:
    """Whether the job is at one of them, or has been through one: nobody trains a further round then."""
    return any(stage.has_begun(session, job) for stage in STAGES)
