"""Whether a job has reached its target or used its budget, and ending it then."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer_core.jobs.messages import seconds_from_duration
from podracer_orchestrator import events, jobs, leases
from podracer_orchestrator.budget import remainder
from podracer_orchestrator.changes import job_topic, touch
from podracer_orchestrator.job_plan import JobPlan, plan_of
from podracer_orchestrator.job_state import ACTIVE_STATES, TRAINING_STATES, JobOutcome, JobState
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow

_JUDGING = (agent_pb2.EVALUATION_PURPOSE_CANDIDATE, agent_pb2.EVALUATION_PURPOSE_CHALLENGE)


def score(plan: JobPlan, evaluation: agent_pb2.Evaluation) -> float:
    """The statistic that the objective holds against its target."""
    return evaluation.mean if plan.target_is_mean else evaluation.lower_bound


def consider(session: Session, job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime) -> None:
    """Take an evaluation into account: it may be the best so far, and it may reach the target.

    Only one that judges (CANDIDATE, CHALLENGE) and whose checkpoint has been committed counts, and the target asks
    for the full number of episodes: what counts can be downloaded and evaluated again.
    """
    if evaluation.purpose not in _JUDGING or not evaluation.HasField("checkpoint"):
        return
    if session.get(CheckpointRow, evaluation.checkpoint.prefix) is None:
        return
    plan = plan_of(job)
    value = score(plan, evaluation)
    is_full = len(evaluation.returns) >= plan.episodes or evaluation.deterministic
    if job.best_score is None or (is_full, value) > (job.best_is_full, job.best_score):
        job.best = evaluation.SerializeToString(deterministic=True)
        job.best_score, job.best_is_full = value, is_full
        message = f"best so far: {value:.6g} by {evaluation.agent}"
        events.record(session, job, "NEW_BEST", message, now=now, subject=evaluation.agent, score=value)
        touch(session, job_topic(job.uid))
    if job.time_to_target_s is None and is_full and plan.target_return is not None and value >= plan.target_return:
        job.time_to_target_s = _target_time_s(job, lease, evaluation, now)
        message = f"{evaluation.agent} has reached the target: {value:.6g}, target {plan.target_return:.6g}"
        events.record(session, job, "TARGET_REACHED", message, now=now, subject=evaluation.agent, score=value)


def finish_if_due(session: Session, job: JobRow, now: datetime) -> None:
    """End the job where its target is reached, or where its budget is used and no lease is out any more."""
    state = JobState(job.state)
    if job.time_to_target_s is not None and state in TRAINING_STATES | {JobState.SUSPENDED}:
        message = f"target reached after {job.time_to_target_s:.1f} s of training"
        jobs.succeed(session, job, JobOutcome.TARGET_REACHED, message, now)
    elif state in TRAINING_STATES and is_budget_used(session, job, now) and not leases.held(session, job_uid=job.uid):
        message = f"budget used: {job.env_steps:,} steps in {leases.active_time_s(job, now):.1f} s"
        jobs.succeed(session, job, JobOutcome.BUDGET_USED, message, now)


def is_budget_used(session: Session, job: JobRow, now: datetime) -> bool:
    """Whether no further round can begin even when every lease has given back what it reserved."""
    if job.rounds_over:
        return True
    plan = plan_of(job)
    used = leases.usage(session, job, now)
    free = dataclasses.replace(used, reserved_env_steps=0, reserved_cost_s=0.0)
    return remainder(plan.budget, free).is_empty


def expected_end(session: Session, job: JobRow, env_steps_per_second: float, now: datetime) -> timedelta | None:
    """Time until the budget is used at the present speed; None where it cannot be told."""
    if JobState(job.state) not in ACTIVE_STATES or job.active_since is None:
        return None
    plan, used = plan_of(job), leases.usage(session, job, now)
    waits = []
    if plan.budget.env_steps is not None and env_steps_per_second > 0.0:
        waits.append((plan.budget.env_steps - used.env_steps) / env_steps_per_second)
    if plan.budget.active_time_s is not None:
        waits.append(plan.budget.active_time_s - used.active_time_s)
    if plan.budget.cost_s is not None:
        pods = max(1, len(leases.held(session, job_uid=job.uid)))
        waits.append((plan.budget.cost_s - used.cost_s) / pods)
    return timedelta(seconds=max(0.0, min(waits))) if waits else None


def _target_time_s(job: JobRow, lease: LeaseRow, evaluation: agent_pb2.Evaluation, now: datetime) -> float:
    """Active time of the job when it was known that the target is reached."""
    for field in ("confirm_time", "train_time"):
        if evaluation.HasField(field):
            in_lease_s = seconds_from_duration(getattr(evaluation, field))
            return min(lease.active_time_s + in_lease_s, leases.active_time_s(job, now))
    return leases.active_time_s(job, now)
