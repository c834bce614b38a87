"""Jobs, pods, events and promotions as clients see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.jobs.messages import seconds_to_duration
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.leases import leases
from podracer_orchestrator.leases.deadlines import LeaseDeadlines
from podracer_orchestrator.leases.leases import PodLease
from podracer_orchestrator.names import job_name, leaderboard_name
from podracer_orchestrator.outcomes import objective, retraining
from podracer_orchestrator.stored_messages import (
    best_of,
    challenger_of,
    champion_of,
    description_of,
    ensemble_of,
    policy_of,
    problem_of,
    retrained_of,
    spec_of,
)
from podracer_orchestrator.tables import ContinuationRow, EventRow, JobRow, PodRow, PromotionRow, WorkKind


def job_message(session: Session, job: JobRow, deadlines: LeaseDeadlines, now: datetime) -> job_pb2.Job:
    """A job as clients see it."""
    message = job_pb2.Job(
        name=job_name(job.project, job.job_id),
        uid=job.uid,
        spec=spec_of(job),
        state=job_pb2.JobState.Value(f"JOB_STATE_{job.state}"),
        outcome=job_pb2.JobOutcome.Value(f"JOB_OUTCOME_{job.outcome or 'UNSPECIFIED'}"),
        progress=_progress(session, job, deadlines, now),
        etag=str(job.revision),
        leaderboard=leaderboard_name(job.project, job.job_id),
        event_position=job.event_position,
        continuous_status=_continuous_status(session, job) if job.is_continuous else None,
        problem=problem_of(job),
        retrained=retrained_of(job),
        ensemble=ensemble_of(job),
        environment_description=description_of(job) if job.description is not None else None,
    )
    if job.parent_uid is not None:
        parent = jobs.get_by_uid(session, job.parent_uid)
        message.parent, message.generation = job_name(parent.project, parent.job_id), job.generation
    message.create_time.FromDatetime(job.create_time)
    if job.start_time is not None:
        message.start_time.FromDatetime(job.start_time)
    if job.end_time is not None:
        message.end_time.FromDatetime(job.end_time)
    return message


def pod_messages(
    session: Session, found: Sequence[PodRow], deadlines: LeaseDeadlines, uses: Mapping[str, job_pb2.Resources]
) -> list[job_pb2.Pod]:
    """Pods as clients see them; `uses` is what their processes take, by name, where that is known."""
    names = [pod.name for pod in found]
    held = leases.held_by(session, names)
    agents = leases.agents_of(session, names)
    return [
        _pod_message(pod, held.get(pod.name), agents.get(pod.name, []), deadlines, uses.get(pod.name)) for pod in found
    ]


def event_message(event: EventRow) -> job_pb2.Event:
    """An event as clients see it."""
    message = job_pb2.Event(
        position=event.position, kind=event.kind, message=event.message, subject=event.subject, details=event.details
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
        policy=policy_of(row) if row.agent else None,
        champion=champion_of(row),
        challenger=challenger_of(row),
    )
    message.create_time.FromDatetime(row.create_time)
    return message


def _continuous_status(session: Session, job: JobRow) -> job_pb2.ContinuousStatus:
    stand = session.get_one(ContinuationRow, job.uid)
    status = job_pb2.ContinuousStatus(generation=stand.generation, data_sha256=stand.data_sha256)
    current = None if stand.child_uid is None else session.get(JobRow, stand.child_uid)
    if current is not None:
        status.current_job = job_name(current.project, current.job_id)
    champion = promotions.champion(session, job)
    if champion is not None:
        status.champion.CopyFrom(policy_of(champion))
        status.champion_generation = champion.generation
    if stand.next_time is not None:
        status.next_time.FromDatetime(stand.next_time)
    return status


def _progress(session: Session, job: JobRow, deadlines: LeaseDeadlines, now: datetime) -> job_pb2.JobProgress:
    held = leases.held(session, job_uid=job.uid)
    leading = [lease for lease in held if lease.kind != WorkKind.FOLLOW]  # what followers do is in their lead's report
    used = leases.usage(session, job, now)
    speed = deadlines.env_steps_per_second(lease.fence for lease in leading)
    live = sum(
        max(0, begun + deadlines.live(fence).member_env_steps.get(agent, 0) - committed)
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
        best=best_of(job),
    )
    if job.time_to_target_s is not None:
        progress.time_to_target.CopyFrom(seconds_to_duration(job.time_to_target_s))
    left = retraining.env_steps_left(session, job) if spec_of(job).HasField("retrain") else None
    if left is None:
        eta = objective.expected_end(job, used, len(held), speed)
    else:
        eta = timedelta(seconds=max(0, left - live) / speed) if speed > 0.0 else None
    if eta is not None:
        progress.eta.FromTimedelta(eta)
    return progress


def _pod_message(
    pod: PodRow,
    lease: PodLease | None,
    agents: Sequence[str],
    deadlines: LeaseDeadlines,
    used: job_pb2.Resources | None,
) -> job_pb2.Pod:
    message = job_pb2.Pod(
        name=pod.name,
        state=job_pb2.PodState.Value(f"POD_STATE_{pod.state}"),
        backend=pod.backend,
        address=pod.address,
        restart_count=pod.restart_count,
        message=pod.message,
        layout=job_pb2.PodLayout.Value(f"POD_LAYOUT_{pod.layout or 'UNSPECIFIED'}"),
        used=used,
        agents=agents,
    )
    last_seen = pod.last_seen_time
    if lease is not None:
        live = deadlines.live(lease.fence)
        message.job, message.fence = job_name(lease.project, lease.job_id), lease.fence
        message.env_steps_per_second = live.env_steps_per_second
        last_seen = max(last_seen, live.time or last_seen)
    if pod.build is not None:
        message.build.ParseFromString(pod.build)
    message.create_time.FromDatetime(pod.create_time)
    message.last_seen_time.FromDatetime(last_seen)
    return message
