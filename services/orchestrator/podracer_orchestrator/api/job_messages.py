"""Jobs and events as messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.jobs.messages import seconds_to_duration
from podracer_core.rpc.resource_names import job_name, leaderboard_name
from podracer_orchestrator import jobs, leases, objective, promotions, retraining
from podracer_orchestrator.cohorts import description_of
from podracer_orchestrator.job_plan import read_spec
from podracer_orchestrator.tables import ContinuationRow, EventRow, JobRow, PromotionRow, WorkKind
from podracer_orchestrator.terms import LeaseTerms


def job_message(session: Session, job: JobRow, terms: LeaseTerms, now: datetime) -> job_pb2.Job:
    """A job as clients see it."""
    message = job_pb2.Job(
        name=job_name(job.project, job.job_id),
        uid=job.uid,
        spec=read_spec(job.spec),
        state=job_pb2.JobState.Value(f"JOB_STATE_{job.state}"),
        outcome=job_pb2.JobOutcome.Value(f"JOB_OUTCOME_{job.outcome or 'UNSPECIFIED'}"),
        progress=_progress(session, job, terms, now),
        etag=str(job.revision),
        leaderboard=leaderboard_name(job.project, job.job_id),
        event_position=job.event_position,
    )
    if job.parent_uid is not None:
        parent = jobs.get_by_uid(session, job.parent_uid)
        message.parent, message.generation = job_name(parent.project, parent.job_id), job.generation
    if job.is_continuous:
        message.continuous_status.CopyFrom(_continuous_status(session, job))
    if job.problem is not None:
        message.problem.CopyFrom(cohort_pb2.Problem.FromString(job.problem))
    if job.retrained is not None:
        message.retrained.ParseFromString(job.retrained)
    if job.ensemble is not None:
        message.ensemble.ParseFromString(job.ensemble)
    if job.description is not None:
        message.environment_description.CopyFrom(description_of(job))
    message.create_time.FromDatetime(job.create_time)
    if job.start_time is not None:
        message.start_time.FromDatetime(job.start_time)
    if job.end_time is not None:
        message.end_time.FromDatetime(job.end_time)
    return message


def event_message(event: EventRow) -> job_pb2.Event:
    """An event as clients see it."""
    message = job_pb2.Event(
        position=event.position,
        kind=event.kind,
        message=event.message,
        subject=event.subject,
        details=event.details,
    )
    message.time.FromDatetime(event.time)
    return message


def promotion_message(row: PromotionRow) -> service_pb2.Promotion:
    """A decision about an alias as clients see it."""
    message = service_pb2.Promotion(
        position=row.position,
        alias=row.alias,
        decision=service_pb2.PromotionDecision.Value(f"PROMOTION_DECISION_{row.decision}"),
        generation=row.generation,
        job=row.child,
        data_sha256=row.data_sha256,
        reason=row.reason,
    )
    if row.agent:
        message.policy.CopyFrom(_policy(row))
    if row.champion is not None:
        message.champion.ParseFromString(row.champion)
    if row.challenger is not None:
        message.challenger.ParseFromString(row.challenger)
    message.create_time.FromDatetime(row.create_time)
    return message


def _policy(row: PromotionRow) -> agent_pb2.Parent:
    checkpoint = agent_pb2.CheckpointReference.FromString(row.checkpoint or b"")
    return agent_pb2.Parent(agent=row.agent, checkpoint=checkpoint)


def _continuous_status(session: Session, job: JobRow) -> job_pb2.ContinuousStatus:
    stand = session.get_one(ContinuationRow, job.uid)
    status = job_pb2.ContinuousStatus(generation=stand.generation, data_sha256=stand.data_sha256)
    current = None if stand.child_uid is None else session.get(JobRow, stand.child_uid)
    if current is not None:
        status.current_job = job_name(current.project, current.job_id)
    champion = promotions.champion(session, job)
    if champion is not None:
        status.champion.CopyFrom(_policy(champion))
        status.champion_generation = champion.generation
    if stand.next_time is not None:
        status.next_time.FromDatetime(stand.next_time)
    return status


def _progress(session: Session, job: JobRow, terms: LeaseTerms, now: datetime) -> job_pb2.JobProgress:
    held = leases.held(session, job_uid=job.uid)
    leading = [lease for lease in held if lease.kind != WorkKind.FOLLOW]  # what followers do is in their lead's report
    used = leases.usage(session, job, now)
    speed = terms.env_steps_per_second(lease.fence for lease in leading)
    live = sum(
        max(0, begun + terms.live(fence).member_env_steps.get(agent, 0) - committed)
        for fence, agent, begun, committed in leases.standings(session, job.uid)
    )
    progress = job_pb2.JobProgress(
        env_steps=job.env_steps,
        live_env_steps=job.env_steps + live,
        env_steps_per_second=speed,
        train_time=seconds_to_duration(leases.active_time_s(job, now)),
        cost=seconds_to_duration(job.cost_s),
        evaluation_cost=seconds_to_duration(job.evaluation_cost_s),
        agent_count=job.agent_count,
        pod_count=len({lease.pod for lease in held}),
        completed_rounds=job.completed_rounds,
        reserved_env_steps=used.reserved_env_steps,
    )
    if job.time_to_target_s is not None:
        progress.time_to_target.CopyFrom(seconds_to_duration(job.time_to_target_s))
    if job.best is not None:
        progress.best.CopyFrom(agent_pb2.Evaluation.FromString(job.best))
    left = retraining.env_steps_left(session, job) if read_spec(job.spec).HasField("retrain") else None
    if left is None:
        eta = objective.expected_end(job, used, len(held), speed)
    else:
        eta = timedelta(seconds=max(0, left - live) / speed) if speed > 0.0 else None
    if eta is not None:
        progress.eta.FromTimedelta(eta)
    return progress


def enum_name(enum: Any, number: int, field: str) -> str:
    """The name of a value of a message's enum, without its prefix. Raises InvalidInput for a number that has none."""
    if number not in enum.values():
        problem = f"{number} is none of {', '.join(enum.keys())}"
        raise InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
    name: str = enum.Name(number)
    return name.removeprefix(enum.Name(0).removesuffix("UNSPECIFIED"))
