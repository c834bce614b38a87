"""The ensemble at the end of a job (ENSEMBLE): the evaluation of its best candidates acting
together.

Its work is PROPOSING until the leaderboard has named them (`board.requests`). The job ends
afterwards in any case."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.stored_messages import encode, order_of, spec_of
from podracer_orchestrator.tables import JobRow, LeaseRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import ENSEMBLE, WORK, touch
from podracer_orchestrator.works import evaluation_works, of_job, works

SMALLEST = 2
"""The fewest candidates of an ensemble."""


class EnsembleWork(evaluation_works.EvaluationWork, works.Stage):
    """The best candidates as one policy."""

    kind = WorkKind.ENSEMBLE

    def is_wanted(self, session: Session, job: JobRow) -> bool:
        """Whether the job asks for an ensemble."""
        return bool(spec_of(job).evolution.ensemble_size)

    def begin(self, session: Session, job: JobRow, now: datetime) -> None:
        """Make its work, whose candidates the leaderboard has to name."""
        jobs.add_work(session, job, self.kind, WorkState.PROPOSING, now)
        touch(session, ENSEMBLE)

    def complete(
        self, change: works.Change, lease: LeaseRow, result: pod_pb2.EvaluateResult
    ) -> None:
        """Store the ensemble's evaluation."""
        super().complete(change, lease, result)
        policies = order_of(change.work).policies
        ensemble = job_pb2.Ensemble(
            policies=policies, rule=result.ensemble, evaluation=result.evaluation
        )
        change.job.ensemble = encode(ensemble)
        message = (
            f"the {len(policies)} best by {result.ensemble}: "
            f"{evaluation_works.describe(result.evaluation)}"
        )
        details = {
            "rule": result.ensemble,
            "policies": len(policies),
            **evaluation_works.numbers(result.evaluation),
        }
        change.record("ENSEMBLE_EVALUATED", message, subject="", **details)

    def fail(self, change: works.Change, problem: cohort_pb2.Problem) -> None:
        """Let the job end without an ensemble."""
        super().fail(change, problem)
        give_up(change, f"it could not be evaluated: {problem.message}")


def awaiting(session: Session) -> Sequence[WorkRow]:
    """The works, also of finals, whose candidates the leaderboard has not named yet."""
    kinds = (WorkKind.ENSEMBLE, WorkKind.FINAL)
    query = select(WorkRow).where(WorkRow.kind.in_(kinds), WorkRow.state == WorkState.PROPOSING)
    return session.scalars(query.order_by(WorkRow.create_time, WorkRow.id)).all()


def choose(change: works.Change, candidates: Sequence[leaderboard_pb2.Candidate]) -> None:
    """Make a PROPOSING work READY with the best of the ordered `candidates`, or give it up."""
    session, job = change.session, change.job
    known = [
        each
        for each in candidates
        if of_job(session, job.uid, each.evaluation.checkpoint.prefix) is not None
    ]
    best = known[: spec_of(job).evolution.ensemble_size]
    if len(best) < SMALLEST:
        give_up(
            change, f"{len(best)} candidates on the leaderboard, at least {SMALLEST} are needed"
        )
        return
    policies = [
        agent_pb2.Parent(agent=each.agent.name, checkpoint=each.evaluation.checkpoint)
        for each in best
    ]
    seen = {seed for each in best for seed in each.evaluation.seeds}
    evaluation_works.fill(job, change.work, policies, agent_pb2.EVALUATION_PURPOSE_REQUESTED, seen)
    touch(session, WORK)


def give_up(change: works.Change, why: str) -> None:
    """Let the job end without its ensemble, or its final."""
    kind = change.work.kind
    change.work.state, change.work.end_time = WorkState.FAILED, change.now
    change.work.problem = encode(cohort_pb2.Problem(reason=f"NO_{kind}", message=why))
    change.record(f"{kind}_SKIPPED", f"no {kind.lower()}: {why}")
