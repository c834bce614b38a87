"""Leases and pods as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.jobs.messages import seconds_to_duration
from podracer_core.rpc.resource_names import job_name, lease_name
from podracer_core.rpc.tokens import LeaseTokens
from podracer_orchestrator import cohorts, evaluation_works, leases
from podracer_orchestrator.leases import HeldLease
from podracer_orchestrator.tables import JobRow, LeaseRow, PodRow, WorkKind, WorkRow
from podracer_orchestrator.terms import LeaseTerms


def lease_message(session: Session, lease: LeaseRow, tokens: LeaseTokens, term_s: float) -> pod_pb2.Lease:
    """A held lease as its pod gets it; the same lease gives the same message again until something is committed."""
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    message = pod_pb2.Lease(
        name=lease_name(job.project, lease.id),
        fence=lease.fence,
        token=tokens.issue(lease.id, lease.fence),
        term=seconds_to_duration(term_s),
        job=job_name(job.project, job.job_id),
        job_uid=job.uid,
        traceparent=job.traceparent,
    )
    if lease.kind == WorkKind.INSPECT:
        message.inspect.CopyFrom(cohorts.inspect_work(job))
    elif lease.kind == WorkKind.EVALUATE:
        message.evaluate.CopyFrom(evaluation_works.evaluate_work(job, work, lease.active_time_s))
    elif lease.kind == WorkKind.FOLLOW:
        message.follow.CopyFrom(cohorts.follow_work(session, job, work, lease))
    else:
        message.train.CopyFrom(cohorts.train_work(session, job, work, lease))
    return message


def pod_messages(
    session: Session, found: Sequence[PodRow], terms: LeaseTerms, uses: Mapping[str, job_pb2.Resources]
) -> list[job_pb2.Pod]:
    """Pods as clients see them; `uses` is what their processes take, by name, where that is known."""
    names = [pod.name for pod in found]
    held = leases.held_by(session, names)
    agents = leases.agents_of(session, names)
    return [_pod_message(pod, held.get(pod.name), agents.get(pod.name, []), terms, uses.get(pod.name)) for pod in found]


def _pod_message(
    pod: PodRow,
    lease: HeldLease | None,
    agents: Sequence[str],
    terms: LeaseTerms,
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
        live = terms.live(lease.fence)
        message.job, message.fence = job_name(lease.project, lease.job_id), lease.fence
        message.env_steps_per_second = live.env_steps_per_second
        last_seen = max(last_seen, live.time or last_seen)
    if pod.build is not None:
        message.build.ParseFromString(pod.build)
    message.create_time.FromDatetime(pod.create_time)
    message.last_seen_time.FromDatetime(last_seen)
    return message
