"""The end of a job: whether it has reached its target or used its budget, and what is still to be
done then."""

from __future__ import annotations

import math
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import (
    ACTIVE_STATES,
    TRAINING_STATES,
    JobOutcome,
    JobState,
    Usage,
    jobs,
    plan_of,
    remainder,
)
from podracer_orchestrator.leases import leases
from podracer_orchestrator.outcomes import claims, post_training
from podracer_orchestrator.stored_messages import description_of
from podracer_orchestrator.tables import JobRow, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import Clock, touched_jobs
from podracer_orchestrator.works import evaluation_works, works

_LONGEST_S = 100 * 365 * 86400.0


def after_change(session: Session, clock: Clock) -> None:
    """End each job that a transaction has touched and that is due, or begin its next stage; for
    `Transactions`."""
    uids = touched_jobs(session)
    # Several together: the sweep touches every active job, and each would be a query of its own.
    touched = (
        jobs.load(session, uids) if len(uids) > 1 else [session.get(JobRow, uid) for uid in uids]
    )
    for job in touched:
        if job is not None and not job.is_continuous:  # a continuous one ends when its user ends it
            _finish_if_due(session, job, clock.now())


def next_challenge(session: Session, job: JobRow, now: datetime) -> WorkRow | None:
    """The challenge of a job that a pod can take up now, one at a time.

    A claim below the target waits while evaluation has used its part of the cost. Claims that still
    wait when no other work is left are heard after all, or the job would end with an unconfirmed
    best. A claim that would make the job end late is not heard."""
    there = works.of_kind(session, job, WorkKind.CHALLENGE, WorkState.READY, WorkState.LEASED)
    left_s = evaluation_works.late_left_s(job, leases.active_time_s(job, now))
    waiting = [work for work in there if work.expected_cost_s <= left_s]
    if not waiting or any(work.state == WorkState.LEASED for work in there):
        return None
    first = min(waiting, key=_precedence)
    return (
        first if claims.is_affordable(job, first) or _is_idle_for_good(session, job, now) else None
    )


def is_budget_used(job: JobRow, now: datetime) -> bool:
    """Whether no further round can begin even when every lease has given back what it reserved."""
    if job.rounds_over:
        return True
    return remainder(plan_of(job).budget, leases.used(job, now)).is_empty


def expected_end_s(
    job: JobRow, used: Usage, pods: int, env_steps_per_second: float
) -> float | None:
    """Seconds until the budget is used at the present speed, with `pods` pods.

    None where it cannot be told, or is more than a lifetime away.
    """
    if JobState(job.state) not in ACTIVE_STATES or job.active_since is None:
        return None
    plan = plan_of(job)
    waits = []
    if plan.budget.env_steps is not None and env_steps_per_second > 0.0:
        waits.append((plan.budget.env_steps - used.env_steps) / env_steps_per_second)
    if plan.budget.active_time_s is not None:
        waits.append(plan.budget.active_time_s - used.active_time_s)
    if plan.budget.cost_s is not None:
        waits.append((plan.budget.cost_s - used.cost_s) / max(1, pods))
    left_s = max(0.0, min(waits, default=math.inf))
    return left_s if left_s < _LONGEST_S else None


def _finish_if_due(session: Session, job: JobRow, now: datetime) -> None:
    """End the job where its target is reached, or where its budget is used and neither a lease nor
    a challenge is out.

    By then the leaderboard has the result of the last challenge and has named the next claim. A
    stage after training that is still open comes before the end."""
    state = JobState(job.state)
    if job.time_to_target_s is not None and state in TRAINING_STATES | {JobState.SUSPENDED}:
        outcome = JobOutcome.TARGET_REACHED
    elif (
        state in TRAINING_STATES
        and _is_idle_for_good(session, job, now)
        and not _has_claims(session, job, now)
    ):
        outcome = JobOutcome.BUDGET_USED
    else:
        return
    if post_training.go_on(session, job, now):
        return
    if job.best is None:
        job.outcome = JobOutcome.NOTHING_JUDGED
        jobs.fail(session, job, _nothing_judged(job, now), now)
    else:
        jobs.succeed(session, job, outcome, _summary(session, job, now), now)


def _nothing_judged(job: JobRow, now: datetime) -> cohort_pb2.Problem:
    used = f"{job.env_steps:,} steps in {leases.active_time_s(job, now):.1f} s"
    cut = description_of(job).evaluation_steps
    less = f"a max_episode_steps below {cut:,}" if cut else "a lower max_episode_steps"
    message = (
        f"the budget was used before any agent was evaluated: {used}; give the objective or "
        f"evolution.round more, or the environment {less}, or fewer pod.members. The last policy "
        "is kept, without a score"
    )
    return cohort_pb2.Problem(reason=JobOutcome.NOTHING_JUDGED, message=message)


def _summary(session: Session, job: JobRow, now: datetime) -> str:
    if job.time_to_target_s is not None:
        return f"target reached after {job.time_to_target_s:.1f} s of training"
    message = f"budget used: {job.env_steps:,} steps in {leases.active_time_s(job, now):.1f} s"
    limit, later = plan_of(job).budget.env_steps, post_training.env_steps(session, job)
    if later:
        message += f", {later:,} of the steps after the selection"
    if limit is not None and job.env_steps - later > limit:
        message += (
            f"; rollouts are finished, so that is {job.env_steps - later - limit:,} more "
            "than max_env_steps"
        )
    return message


def _is_idle_for_good(session: Session, job: JobRow, now: datetime) -> bool:
    return is_budget_used(job, now) and not leases.held(session, job_uid=job.uid)


def _has_claims(session: Session, job: JobRow, now: datetime) -> bool:
    """Whether a candidate waits for a challenge, or may once the leaderboard has the last
    challenge's result."""
    return next_challenge(session, job, now) is not None or outbox.has_challenge(
        session, outbox.board_of(job)
    )


def _precedence(work: WorkRow) -> tuple[bool, float, str]:
    """Whatever is least comes first: claims of the target, the better claim."""
    return not work.claims_target, -(work.claimed_score or 0.0), work.checkpoint or ""
