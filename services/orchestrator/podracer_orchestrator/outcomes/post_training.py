"""The stages of a job after its training, one after the other."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from podracer_orchestrator.continuous import ContestWork
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes.ensembles import EnsembleWork
from podracer_orchestrator.outcomes.finals import FinalWork
from podracer_orchestrator.outcomes.retraining import RetrainWork
from podracer_orchestrator.stored_messages import proposal_of
from podracer_orchestrator.tables import JobRow, MemberRow, WorkRow, WorkState
from podracer_orchestrator.works import Stage

STAGES: tuple[Stage, ...] = (FinalWork(), EnsembleWork(), RetrainWork(), ContestWork())
_OPEN = (WorkState.PROPOSING, WorkState.READY, WorkState.LEASED)


def go_on(session: Session, job: JobRow, now: datetime) -> bool:
    """Begin the next stage, unless one is in progress; False once the job has completed all that it
    needs.

    A stage before one that has begun is past: a job of an earlier version may have begun without
    it."""
    there = session.execute(_works(job, WorkRow.kind, WorkRow.state)).all()
    if any(state in _OPEN for _, state in there):
        return True
    begun = {kind for kind, _ in there}
    past = max((place for place, stage in enumerate(STAGES, 1) if stage.kind in begun), default=0)
    for stage in STAGES[past:]:
        if stage.is_wanted(session, job):
            # a round in progress may still bring a candidate for it
            if not leases.held(session, job_uid=job.uid):
                jobs.drop_waiting(session, job, now)
                job.rounds_over = True
                stage.begin(session, job, now)
            return True
    return False


def env_steps(session: Session, job: JobRow) -> int:
    """Committed environment steps beyond the objective's limit."""
    trained = _works(job, func.sum(MemberRow.env_steps)).join(
        MemberRow, MemberRow.work_id == WorkRow.id
    )
    return int(session.scalar(trained) or 0)


def env_steps_left(session: Session, job: JobRow) -> int | None:
    """The environment steps that the current stage still has to train; None if it does not
    train."""
    if not job.rounds_over:  # no stage has begun: this is asked for every job that is listed
        return None
    for work in session.scalars(
        _works(job, WorkRow).where(WorkRow.state.in_(_OPEN), WorkRow.proposal.is_not(None))
    ):
        done: int = sum(member.env_steps for member in work.members)
        return max(0, proposal_of(work).round_env_steps - done)
    return None


def _works(job: JobRow, *what: Any) -> Select[Any]:
    kinds = [stage.kind for stage in STAGES]
    return (
        select(*what)
        .select_from(WorkRow)
        .where(WorkRow.job_uid == job.uid, WorkRow.kind.in_(kinds))
    )
