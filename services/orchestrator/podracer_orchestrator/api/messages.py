"""Jobs, pods, events and promotions as clients see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.state import FINAL_STATES, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.leases.deadlines import LeaseDeadlines, LiveReport
from podracer_orchestrator.leases.leases import PodLease
from podracer_orchestrator.outcomes import ending, post_training
from podracer_orchestrator.stored_messages import (
    best_of,
    build_of,
    challenger_of,
    champion_of,
    description_of,
    ensemble_of,
    policy_of,
    problem_of,
    retrained_of,
    spec_of,
    timestamp,
)
from podracer_orchestrator.tables import (
    ContinuationRow,
    EventRow,
    JobRow,
    PodRow,
    PromotionRow,
    WorkKind,
)
from podracer_orchestrator.works.checkpoints import unjudged_policy
from podracer_platform.messages.sections import seconds_to_duration
from podracer_platform.rpc.resource_names import job_name, leaderboard_name, wrong_field

BASIC_ARGUMENTS_BYTES = 1024


def job_message(
    session: Session, job: JobRow, deadlines: LeaseDeadlines, now: datetime
) -> job_pb2.Job:
    """A job as clients see it."""
    parent = None if job.parent_uid is None else jobs.get_by_uid(session, job.parent_uid)
    return job_pb2.Job(
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
        unjudged=unjudged_policy(session, job),
        ensemble=ensemble_of(job),
        environment_description=description_of(job) if job.description is not None else None,
        parent=job_name(parent.project, parent.job_id) if parent is not None else "",
        generation=job.generation,
        create_time=timestamp(job.create_time),
        start_time=timestamp(job.start_time),
        end_time=timestamp(job.end_time),
    )


def viewed(job: job_pb2.Job, view: service_pb2.JobView.ValueType) -> job_pb2.Job:
    """The job as a listing has it."""
    if view == service_pb2.JOB_VIEW_FULL:
        return job
    found = job_pb2.Job()
    found.CopyFrom(job)
    spec = found.spec
    found.ClearField("environment_description")
    for field in ("search", "founders", "data", "data_sets", "retrain", "continuous"):
        spec.ClearField(field)
    spec.environment.ClearField("code")
    spec.environment.ClearField("data")
    if spec.environment.kwargs.ByteSize() > BASIC_ARGUMENTS_BYTES:
        spec.environment.ClearField("kwargs")
    return found


def pod_messages(
    session: Session,
    found: Sequence[PodRow],
    deadlines: LeaseDeadlines,
    uses: Mapping[str, job_pb2.Resources],
    visible: Collection[str] | None = None,
) -> list[job_pb2.Pod]:
    """Pods as clients see them; `uses`: the resources that their processes use, by name, if known.
    `visible`: the projects whose jobs may be named; None: all."""
    held = leases.held_by(session, [pod.name for pod in found])
    if visible is not None:
        held = {pod: lease for pod, lease in held.items() if lease.project in visible}
    agents = leases.agents_of(session, list(held))
    return [
        _pod_message(
            pod, held.get(pod.name), agents.get(pod.name, []), deadlines, uses.get(pod.name)
        )
        for pod in found
    ]


def event_message(event: EventRow) -> job_pb2.Event:
    """An event as clients see it."""
    return job_pb2.Event(
        position=event.position,
        kind=event.kind,
        message=event.message,
        subject=event.subject,
        details=event.details,
        time=timestamp(event.time),
    )


def promotion_message(row: PromotionRow) -> service_pb2.Promotion:
    """A decision about an alias as clients see it."""
    return service_pb2.Promotion(
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
        create_time=timestamp(row.create_time),
    )


def _continuous_status(session: Session, job: JobRow) -> job_pb2.ContinuousStatus:
    stand = session.get_one(ContinuationRow, job.uid)
    current = None if stand.child_uid is None else session.get(JobRow, stand.child_uid)
    champion = promotions.champion(session, job)
    return job_pb2.ContinuousStatus(
        generation=stand.generation,
        data_sha256=stand.data_sha256,
        current_job="" if current is None else job_name(current.project, current.job_id),
        champion=None if champion is None else policy_of(champion),
        champion_generation=0 if champion is None else champion.generation,
        next_time=timestamp(stand.next_time),
    )


def _progress(
    session: Session, job: JobRow, deadlines: LeaseDeadlines, now: datetime
) -> job_pb2.JobProgress:
    held = leases.held(session, job_uid=job.uid)
    # what followers do is in their lead's report
    leading = [lease for lease in held if lease.kind != WorkKind.FOLLOW]
    used = leases.usage(session, job, now)
    speed = deadlines.env_steps_per_second(lease.fence for lease in leading)
    # The steps of rounds that the end of the job interrupts are not committed.
    standings = () if JobState(job.state) in FINAL_STATES else leases.standings(session, job.uid)
    live = sum(
        max(0, begun + deadlines.live(fence).member_env_steps.get(agent, 0) - committed)
        for fence, agent, begun, committed in standings
    )
    left = post_training.env_steps_left(session, job)
    if left is None:
        eta_s = ending.expected_end_s(job, used, len(held), speed)
    else:
        eta_s = max(0, left - live) / speed if speed > 0.0 else None
    return job_pb2.JobProgress(
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
        best_score=job.best_score,
        time_to_target=None
        if job.time_to_target_s is None
        else seconds_to_duration(job.time_to_target_s),
        eta=None if eta_s is None else seconds_to_duration(eta_s),
    )


def _pod_message(
    pod: PodRow,
    lease: PodLease | None,
    agents: Sequence[str],
    deadlines: LeaseDeadlines,
    used: job_pb2.Resources | None,
) -> job_pb2.Pod:
    live = LiveReport() if lease is None else deadlines.live(lease.fence)
    return job_pb2.Pod(
        name=pod.name,
        state=job_pb2.PodState.Value(f"POD_STATE_{pod.state}"),
        backend=pod.backend,
        address=pod.address,
        restart_count=pod.restart_count,
        message=pod.message,
        layout=job_pb2.PodLayout.Value(f"POD_LAYOUT_{pod.layout or 'UNSPECIFIED'}"),
        used=used,
        agents=agents,
        job="" if lease is None else job_name(lease.project, lease.job_id),
        fence=0 if lease is None else lease.fence,
        env_steps_per_second=live.env_steps_per_second,
        build=build_of(pod),
        create_time=timestamp(pod.create_time),
        last_seen_time=timestamp(max(pod.last_seen_time, live.time or pod.last_seen_time)),
    )


def enum_name(enum: Any, number: int, field: str) -> str:
    """The name of a value of a message's enum, without its prefix. Raises InvalidInput for a number
    that has none."""
    if number not in enum.values():
        raise wrong_field(field, f"{number} is none of {', '.join(enum.keys())}")
    name: str = enum.Name(number)
    return name.removeprefix(enum.Name(0).removesuffix("UNSPECIFIED"))
