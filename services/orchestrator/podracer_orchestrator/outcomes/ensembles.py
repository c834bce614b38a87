"""The ensemble at the end of a job: its best candidates act together, and are evaluated so.

Its work is PROPOSING until the leaderboard has said which they are (`board.requests`). Whatever becomes of it,
the job ends afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_orchestrator import events
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.stored_messages import encode, order_of, spec_of
from podracer_orchestrator.tables import CheckpointRow, JobRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import ENSEMBLE, WORK, touch
from podracer_orchestrator.works import evaluation_works

SMALLEST = 2
"""Fewer candidates are no ensemble."""
_OPEN = (WorkState.PROPOSING, WorkState.READY, WorkState.LEASED)


def is_wanted(session: Session, job: JobRow) -> bool:
    """Whether the job has to evaluate an ensemble before it ends."""
    if not spec_of(job).evolution.ensemble_size or job.ensemble is not None:
        return False
    return not _has_one_that_is(session, job, (WorkState.FAILED,))


def has_begun(session: Session, job: JobRow) -> bool:
    """Whether the job is at work on its ensemble."""
    return _has_one_that_is(session, job, _OPEN)


def begin(session: Session, job: JobRow, now: datetime) -> None:
    """Make its work, whose candidates the leaderboard has to name."""
    jobs.add_work(session, job, WorkKind.EVALUATE, WorkState.PROPOSING, now)
    touch(session, ENSEMBLE)


def awaiting(session: Session) -> Sequence[WorkRow]:
    """The works whose candidates the leaderboard has not named yet."""
    query = select(WorkRow).where(WorkRow.kind == WorkKind.EVALUATE, WorkRow.state == WorkState.PROPOSING)
    return session.scalars(query.order_by(WorkRow.create_time, WorkRow.id)).all()


def choose(
    session: Session, job: JobRow, work: WorkRow, candidates: Sequence[leaderboard_pb2.Candidate], now: datetime
) -> None:
    """Make a PROPOSING work READY with the best of `candidates`, which are in their order; or give it up."""
    known = [each for each in candidates if session.get(CheckpointRow, each.evaluation.checkpoint.prefix) is not None]
    best = known[: spec_of(job).evolution.ensemble_size]
    if len(best) < SMALLEST:
        give_up(session, job, work, f"{len(best)} candidates on the leaderboard, at least {SMALLEST} are needed", now)
        return
    policies = [agent_pb2.Parent(agent=each.agent.name, checkpoint=each.evaluation.checkpoint) for each in best]
    seen = {seed for each in best for seed in each.evaluation.seeds}
    evaluation_works.fill(job, work, policies, agent_pb2.EVALUATION_PURPOSE_REQUESTED, seen)
    touch(session, WORK)


def complete(session: Session, job: JobRow, work: WorkRow, result: pod_pb2.EvaluateResult, now: datetime) -> None:
    """Store how the ensemble did."""
    policies = order_of(work).policies
    ensemble = job_pb2.Ensemble(policies=policies, rule=result.ensemble, evaluation=result.evaluation)
    job.ensemble = encode(ensemble)
    message = f"the {len(policies)} best by {result.ensemble}: {evaluation_works.describe(result.evaluation)}"
    details = {"rule": result.ensemble, "policies": len(policies), **evaluation_works.numbers(result.evaluation)}
    events.record(session, job, "ENSEMBLE_EVALUATED", message, now=now, subject="", work=work.id, **details)


def give_up(session: Session, job: JobRow, work: WorkRow, why: str, now: datetime) -> None:
    """Have the job end without its ensemble."""
    work.state, work.end_time = WorkState.FAILED, now
    work.problem = encode(cohort_pb2.Problem(reason="NO_ENSEMBLE", message=why))
    events.record(session, job, "ENSEMBLE_SKIPPED", f"no ensemble: {why}", now=now, work=work.id)


def _has_one_that_is(session: Session, job: JobRow, states: Collection[WorkState]) -> bool:
    return any(map(evaluation_works.is_of_ensemble, evaluation_works.in_states(session, job.uid, states)))
