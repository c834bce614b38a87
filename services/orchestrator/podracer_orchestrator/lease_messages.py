"""Leases and pods as messages."""

from __future__ import annotations

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.jobs.messages import seconds_to_duration
from podracer_core.rpc.tokens import LeaseTokens
from podracer_orchestrator import cohorts, evaluation_works, leases
from podracer_orchestrator.names import job_name, lease_name
from podracer_orchestrator.progress import members_of
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
    )
    if lease.kind == WorkKind.INSPECT:
        message.inspect.CopyFrom(cohorts.inspect_work(job))
    elif lease.kind == WorkKind.EVALUATE:
        message.evaluate.CopyFrom(evaluation_works.evaluate_work(job, work))
    elif lease.kind == WorkKind.FOLLOW:
        message.follow.CopyFrom(cohorts.follow_work(session, job, work, lease))
    else:
        message.train.CopyFrom(cohorts.train_work(session, job, work, lease))
    return message


def pod_message(session: Session, pod: PodRow, terms: LeaseTerms, used: job_pb2.Resources | None = None) -> job_pb2.Pod:
    """A pod as clients see it; `used` is what its processes take, where that is known."""
    message = job_pb2.Pod(
        name=pod.name,
        state=job_pb2.PodState.Value(f"POD_STATE_{pod.state}"),
        backend=pod.backend,
        address=pod.address,
        restart_count=pod.restart_count,
        message=pod.message,
        layout=job_pb2.PodLayout.Value(f"POD_LAYOUT_{pod.layout or 'UNSPECIFIED'}"),
        used=used,
    )
    last_seen = pod.last_seen_time
    for lease in leases.held(session, pod=pod.name):
        job = session.get_one(JobRow, lease.job_uid)
        message.job = job_name(job.project, job.job_id)
        live = terms.live(lease.fence)
        message.fence = lease.fence
        message.agents.extend(member.agent for member in members_of(session, lease.work_id))
        message.env_steps_per_second = live.env_steps_per_second
        last_seen = max(last_seen, live.time or last_seen)
    if pod.build is not None:
        message.build.CopyFrom(cohort_pb2.BuildInfo.FromString(pod.build))
    message.create_time.FromDatetime(pod.create_time)
    message.last_seen_time.FromDatetime(last_seen)
    return message
