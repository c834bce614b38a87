"""The end of a lease: its work is done, free again, or failed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import InvalidInput
from podracer_orchestrator.jobs import LIVE_STATES, JobState
from podracer_orchestrator.leases import ROUND_OVER, FollowWork, leases
from podracer_orchestrator.outcomes import post_training
from podracer_orchestrator.outcomes.challenges import ChallengeWork
from podracer_orchestrator.outcomes.training import InspectWork, TrainWork
from podracer_orchestrator.stored_messages import encode
from podracer_orchestrator.tables import JobRow, LeaseRow, LeaseState, WorkKind, WorkRow, WorkState
from podracer_orchestrator.works import Change, Work, refuse

MAX_ATTEMPTS = 5
"""Consecutive lost leases of a work, without a commit, before it fails."""

Result = pod_pb2.TrainResult | pod_pb2.EvaluateResult | pod_pb2.InspectResult | cohort_pb2.Problem

_WORKS: tuple[Work, ...] = (InspectWork(), TrainWork(), ChallengeWork(), FollowWork())


def work_of(kind: str) -> Work:
    """The implementation of a kind of work."""
    return next(work for work in (*_WORKS, *post_training.STAGES) if work.kind == kind)


def change_of(session: Session, lease: LeaseRow, now: datetime) -> Change:
    """A change of a lease's work."""
    job, work = session.get_one(JobRow, lease.job_uid), session.get_one(WorkRow, lease.work_id)
    return Change(session, job, work, lease.pod, now)


def complete(
    session: Session, lease: LeaseRow, result: Result, now: datetime, *, sound_here: bool = False
) -> None:
    """End a held lease with its result, in one transaction.

    A Problem means that no pod can do the work. `sound_here`: the object that the pod could not
    read is intact in the store, so the pod is at fault. Raises InvalidInput for the result of
    another kind of work."""
    change, kind = change_of(session, lease, now), work_of(lease.kind)
    if isinstance(result, cohort_pb2.Problem):
        _give_up(change, kind, lease, result, sound_here)
        return
    if not isinstance(result, kind.results):
        message = f"{lease.kind} lease: its result cannot be {type(result).__name__}"
        raise InvalidInput(message, reason="WRONG_RESULT")
    leases.end(session, change.job, lease, LeaseState.COMPLETED, now)
    kind.complete(change, lease, result)


def lose(
    session: Session,
    lease: LeaseRow,
    state: LeaseState,
    why: str,
    now: datetime,
    *,
    problem: cohort_pb2.Problem | None = None,
) -> None:
    """End a lease whose work is not done; another pod continues from the last committed
    checkpoints.

    `problem` is set if the pod, not the pool, is to blame: after several such losses without a
    commit the work fails. A failure of a follower's pod does not count against its lead."""
    change, follows = change_of(session, lease, now), lease.kind == WorkKind.FOLLOW
    if follows and problem is not None and state is not LeaseState.EXPIRED:
        lease.left_for = problem.reason or "INTERNAL"
    leases.end(session, change.job, lease, state, now)
    kind = "LEASE_EXPIRED" if state is LeaseState.EXPIRED else "LEASE_RELEASED"
    kind = "FOLLOW_ENDED" if lease.left_for == ROUND_OVER else kind
    change.record(kind, why, subject=lease.pod, fence=lease.fence)
    if follows or not _free(change) or problem is None:
        return
    change.work.attempts += 1
    change.work.problem = encode(problem)
    if change.work.attempts >= MAX_ATTEMPTS:
        work_of(lease.kind).fail(change, problem)


def _give_up(
    change: Change, kind: Work, lease: LeaseRow, problem: cohort_pb2.Problem, sound_here: bool
) -> None:
    """End a lease whose work cannot be done. A follower only leaves: its lead reports."""
    session, now = change.session, change.now
    if kind.kind == WorkKind.FOLLOW:
        why = f"{lease.pod} cannot follow: {problem.message or problem.reason}"
        lose(session, lease, LeaseState.COMPLETED, why, now, problem=problem)
    elif sound_here:
        why = f"{lease.pod} cannot read an object that is intact in the store: {problem.message}"
        lose(session, lease, LeaseState.RELEASED, why, now, problem=problem)
    else:
        leases.end(session, change.job, lease, LeaseState.COMPLETED, now)
        if refuse(session, change.job, change.work, problem, now) and kind.can_go_on(change):
            _free(change)
        else:
            kind.fail(change, problem)


def _free(change: Change) -> bool:
    """Free a work whose lease has ended for another pod; False if its job has also ended."""
    if JobState(change.job.state) not in LIVE_STATES:
        change.work.state, change.work.end_time = WorkState.DROPPED, change.now
        return False
    change.work.state = WorkState.READY
    return True
