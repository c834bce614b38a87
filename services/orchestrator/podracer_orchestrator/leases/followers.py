"""Followers: the pods that train the work of the lead's lease together with the lead (several
learners of one agent).

A follower holds a lease of the kind FOLLOW on the lead's work. Its renewals only show that its pod
lives; the lead's lease alone reports, commits and completes. While the lease is held, its pod has
its own rank in the team, and its wall time counts to the job's cost. The lease ends when its pod
hands it back or falls silent, and in the same transaction as the lead's: no FOLLOW lease outlives
the lease that it follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import jobs
from podracer_orchestrator.tables import JobRow, LeaseRow, LeaseState, WorkKind

BACK_OFF = timedelta(seconds=30)
"""How long a pod that has left a lead after a failure is not offered that lead again."""
ROUND_OVER = "ROUND_OVER"
"""Reason of a follower whose lead told it to leave: the lead completes its work now and needs no
followers."""
CANNOT_FUSE = "PODS_CANNOT_FUSE"


@dataclass(frozen=True, slots=True)
class Place:
    """A free place for a follower: the lead and the rank."""

    lead: LeaseRow
    rank: int


def free_rank(taken: Collection[int], learners: int) -> int | None:
    """The lowest free rank in a team of `learners`, whose lead has rank 0; None if the team is
    complete."""
    return next((rank for rank in range(1, learners) if rank not in taken), None)


_OF_LEAD = (
    select(LeaseRow)
    .where(LeaseRow.lead_fence == bindparam("lead"), LeaseRow.state == LeaseState.HELD)
    .order_by(LeaseRow.fence)
)


def of_lead(session: Session, lead_fence: int) -> Sequence[LeaseRow]:
    """The leases that are held under a lead's, oldest first."""
    return session.scalars(_OF_LEAD, {"lead": lead_fence}).all()


def open_place(
    session: Session, leads: Collection[LeaseRow], pod: str, learners: int, now: datetime
) -> Place | None:
    """The best place for `pod`: under the lead with the fewest followers; of several the newest,
    whose round has the most time left. Leads that the pod has just left after a failure, or that
    have ended their round, do not count."""
    places: list[tuple[int, int, Place]] = []
    for lead in leads:
        if is_over(lead, now):
            continue
        ranks = {follower.rank or 0 for follower in of_lead(session, lead.fence)}
        rank = free_rank(ranks, learners)
        if rank is not None and not _is_in_vain(session, lead, pod, now):
            places.append((len(ranks), -lead.fence, Place(lead, rank)))
    return min(places, key=lambda each: each[:2])[2] if places else None


def is_over(lead: LeaseRow, now: datetime) -> bool:
    """Whether a lead's time to train is up: it evaluates and commits."""
    return lead.time_s is not None and time_left_s(lead, now) == 0.0


def time_left_s(lead: LeaseRow, now: datetime) -> float:
    """How long a lead still trains by its lease; 0 without a time limit."""
    return (
        0.0
        if lead.time_s is None
        else max(0.0, lead.time_s - (now - lead.grant_time).total_seconds())
    )


def count_cost(job: JobRow, follower: LeaseRow, now: datetime) -> None:
    """Count the cost of a follower's pod up to now, once, for its lease and its job."""
    if follower.cost_since is None:
        return
    grown = max(0.0, (now - follower.cost_since).total_seconds())
    follower.cost_s += grown
    job.cost_s += grown
    follower.cost_since = now


def count_costs(session: Session, now: datetime) -> None:
    """`count_cost` of every follower, so that a crash loses little of it."""
    for follower in _held(session):
        count_cost(jobs.get_by_uid(session, follower.job_uid), follower, now)


def forget_time_since(session: Session, now: datetime) -> None:
    """Count from now on: the followers' work since their cost was last counted is unknown."""
    for follower in _held(session):
        follower.cost_since = now


def note_unfit(session: Session, job: JobRow, pod: str, why: str, now: datetime) -> None:
    """Record once in a job's log why a pod gets no work, as the job would seem to wait without a
    reason."""
    if not outbox.messages(session, job, CANNOT_FUSE):
        message = f"{pod} cannot work for a job with several learners: {why}"
        outbox.record(session, job, CANNOT_FUSE, message, now=now, subject=pod)


def _held(session: Session) -> Sequence[LeaseRow]:
    query = select(LeaseRow).where(
        LeaseRow.state == LeaseState.HELD, LeaseRow.kind == WorkKind.FOLLOW
    )
    return session.scalars(query).all()


def _is_in_vain(session: Session, lead: LeaseRow, pod: str, now: datetime) -> bool:
    has_just_left = (
        (LeaseRow.pod == pod) & (LeaseRow.left_for != "") & (LeaseRow.end_time > now - BACK_OFF)
    )
    query = select(LeaseRow.fence).where(
        LeaseRow.lead_fence == lead.fence, has_just_left | (LeaseRow.left_for == ROUND_OVER)
    )
    return session.scalar(query.limit(1)) is not None
