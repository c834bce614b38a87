"""What becomes of a piece of work when its lease ends: done, free again, or failed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import PodracerError, UserCodeFailed
from podracer_core.jobs.messages import seconds_to_duration
from podracer_orchestrator import events, outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.jobs.state import LIVE_STATES, JobState
from podracer_orchestrator.leases import leases
from podracer_orchestrator.leases.followers import ROUND_OVER
from podracer_orchestrator.outcomes import ensembles, retraining
from podracer_orchestrator.stored_messages import checkpoint_reference, encode
from podracer_orchestrator.tables import CheckpointRow, JobRow, LeaseRow, LeaseState, WorkKind, WorkRow, WorkState
from podracer_orchestrator.transactions import WORK, touch
from podracer_orchestrator.works import evaluation_works
from podracer_orchestrator.works.checkpoints import members_of

MAX_ATTEMPTS = 5
"""Leases of one work that are lost one after the other, without a commit, before it fails."""
MAX_FAILED_WORKS = 3
"""Works of one job that fail one after the other, without a commit, before it fails."""


def lose(
    session: Session,
    lease: LeaseRow,
    state: LeaseState,
    why: str,
    now: datetime,
    *,
    problem: cohort_pb2.Problem | None = None,
) -> None:
    """End a lease whose work is not done; another pod goes on from the last committed checkpoints.

    `problem` is set where the pod, not the pool, is to blame: after several such losses without a commit the work
    fails.
    """
    if lease.kind == WorkKind.FOLLOW:
        leave(session, lease, state, why, now, problem=problem)
        return
    job = session.get_one(JobRow, lease.job_uid)
    work = session.get_one(WorkRow, lease.work_id)
    leases.end(session, job, lease, state, now)
    kind = _end_kind(state)
    events.record(session, job, kind, why, now=now, subject=lease.pod, fence=lease.fence, work=work.id)
    if not free(session, job, work, now) or problem is None:
        return
    work.attempts += 1
    work.problem = encode(problem)
    if work.attempts >= MAX_ATTEMPTS:
        fail(session, job, work, problem, now)


def free(session: Session, job: JobRow, work: WorkRow, now: datetime) -> bool:
    """Have another pod go on with a work whose lease has ended; false where its job has, too."""
    if JobState(job.state) not in LIVE_STATES:
        work.state, work.end_time = WorkState.DROPPED, now
        return False
    work.state = WorkState.READY
    touch(session, WORK)
    return True


def leave(
    session: Session,
    lease: LeaseRow,
    state: LeaseState,
    why: str,
    now: datetime,
    *,
    problem: cohort_pb2.Problem | None = None,
) -> None:
    """End a FOLLOW lease: its team goes on without it, and its place is free for another pod.

    `problem` is what its pod says went wrong; what has befallen the pod itself is no reason against its lead.
    """
    if problem is not None and state is not LeaseState.EXPIRED:
        lease.left_for = problem.reason or "INTERNAL"
    job = session.get_one(JobRow, lease.job_uid)
    leases.end(session, job, lease, state, now)
    kind = "FOLLOW_ENDED" if lease.left_for == ROUND_OVER else _end_kind(state)
    events.record(session, job, kind, why, now=now, subject=lease.pod, fence=lease.fence)


def fail(session: Session, job: JobRow, work: WorkRow, problem: cohort_pb2.Problem, now: datetime) -> None:
    """End a work that cannot be done; its agents are reported as failed. Several in a row fail the job.

    An evaluation, or training the best once more, fails nothing but itself: the job goes on, or ends, without it.
    """
    work.state, work.end_time = WorkState.FAILED, now
    work.problem = encode(problem)
    events.record(session, job, "WORK_FAILED", f"{work.kind} failed: {problem.message}", now=now, work=work.id)
    if work.kind == WorkKind.RETRAIN:
        if JobState(job.state) in LIVE_STATES:
            retraining.give_up(session, job, work, problem, now)
        return
    for member in members_of(session, work.id):
        request = leaderboard_pb2.SubmitCandidateRequest(
            leaderboard=outbox.board_of(job),
            request_id=f"{work.id}/{member.position}",
            agent=member.agent,
            env_steps=member.env_steps,
            cost=seconds_to_duration(member.cost_s),
            failure=problem.message or problem.reason,
        )
        if member.checkpoint is not None:
            request.latest.CopyFrom(checkpoint_reference(session.get_one(CheckpointRow, member.checkpoint)))
        outbox.submit_candidate(session, job, request)
    if work.kind == WorkKind.EVALUATE:
        if evaluation_works.is_of_ensemble(work):
            ensembles.give_up(session, job, work, f"it could not be evaluated: {problem.message}", now)
    else:
        note_failure(session, job, work.kind, problem, now)
    touch(session, WORK)


def note_failure(session: Session, job: JobRow, kind: str, problem: cohort_pb2.Problem, now: datetime) -> None:
    """Count a failed work; the job fails with it where nothing suggests that the next one fares better."""
    job.failed_works += 1
    if JobState(job.state) in LIVE_STATES and (kind == WorkKind.INSPECT or job.failed_works >= MAX_FAILED_WORKS):
        jobs.fail(session, job, problem, now)


def problem_of(error: PodracerError) -> cohort_pb2.Problem:
    """An error as a part of a result."""
    detail = error.user_traceback if isinstance(error, UserCodeFailed) else ""
    return cohort_pb2.Problem(reason=error.reason, message=error.message, detail=detail)


def _end_kind(state: LeaseState) -> str:
    return "LEASE_EXPIRED" if state is LeaseState.EXPIRED else "LEASE_RELEASED"
