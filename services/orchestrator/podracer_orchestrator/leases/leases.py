"""Leases in the database: granting, holding, ending; and their deadlines in memory."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, case, func, select, type_coerce
from sqlalchemy.orm import Session

from podracer_core.errors import Fenced
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import Grant, JobSignal, RoundLimits, Usage, jobs, plan_of
from podracer_orchestrator.leases import followers
from podracer_orchestrator.leases.followers import Place
from podracer_orchestrator.tables import (
    JobRow,
    LeaseRow,
    LeaseState,
    MemberRow,
    PodRow,
    PodState,
    WorkKind,
    WorkRow,
    WorkState,
)
from podracer_orchestrator.transactions import POOL, WORK, Clock, job_topic, touch
from podracer_platform.database import UtcTime

_INACTIVE_KINDS = (WorkKind.INSPECT, WorkKind.FOLLOW)
"""A job is active while it has a lease of any other kind: the time of a challenge also counts to
the target."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The asker of a lease: the pod, this start of its learner, and the request."""

    pod: str
    instance_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease and its fence, as its holder's call names them."""

    lease_id: str
    fence: int
    project: str = ""


def grant(
    session: Session, job: JobRow, work: WorkRow, asker: Asker, what: Grant, now: datetime
) -> LeaseRow:
    """Lease a READY work, with a fence above those of all former leases."""
    accrue(job, now)
    lease = _new(job, work.id, work.kind, asker, now)
    lease.member_env_steps, lease.time_s = what.round.member_env_steps, what.round.time_s
    lease.is_cut = what.is_cut
    lease.reserved_env_steps, lease.reserved_cost_s = what.reserved_env_steps, what.reserved_cost_s
    session.add(lease)
    session.flush()
    work.state = WorkState.LEASED
    for member in work.members:
        member.base_env_steps = member.env_steps
        member.base_cost_s = member.cost_s
        member.base_evaluation_cost_s = member.evaluation_cost_s
    if work.kind not in _INACTIVE_KINDS:
        job.active_since = job.active_since or now
    if work.kind == WorkKind.TRAIN:
        jobs.signal(session, job, JobSignal.LEASED, now)
    _set_pod(session, lease.pod, PodState.WORKING)
    message = f"{work.kind} leased to {asker.pod}"
    outbox.record(
        session,
        job,
        "LEASE_GRANTED",
        message,
        now=now,
        subject=asker.pod,
        fence=lease.fence,
        work=work.id,
    )
    return lease


def follow(
    session: Session, job: JobRow, place: Place, asker: Asker, reserved_cost_s: float, now: datetime
) -> LeaseRow:
    """Lease a place under a lead. Its work stays the lead's; only the pod's time counts to the
    job."""
    lease = _new(job, place.lead.work_id, WorkKind.FOLLOW, asker, now)
    lease.lead_fence, lease.rank, lease.cost_since = place.lead.fence, place.rank, now
    lease.reserved_cost_s = reserved_cost_s
    session.add(lease)
    session.flush()
    _set_pod(session, lease.pod, PodState.WORKING)
    message = f"{asker.pod} follows {place.lead.pod} as number {place.rank}"
    details = {"fence": lease.fence, "lead_fence": place.lead.fence, "rank": place.rank}
    outbox.record(session, job, "LEASE_GRANTED", message, now=now, subject=asker.pod, **details)
    return lease


_HELD = LeaseRow.state == LeaseState.HELD
_IN_JOB = LeaseRow.job_uid == bindparam("job")
_FIND = (
    select(LeaseRow, JobRow, WorkRow)
    .join(JobRow, JobRow.uid == LeaseRow.job_uid)
    .join(WorkRow, WorkRow.id == LeaseRow.work_id)
    .where(LeaseRow.fence == bindparam("fence"))
)
_OF_ASKER = (
    select(LeaseRow)
    .where(
        (LeaseRow.request_id == bindparam("request")) | ((LeaseRow.pod == bindparam("pod")) & _HELD)
    )
    .order_by(LeaseRow.fence)
)
_FENCES = select(LeaseRow.fence).where(_HELD, _IN_JOB)
_ACTIVE = _FENCES.where(
    LeaseRow.kind.not_in(_INACTIVE_KINDS), LeaseRow.fence != bindparam("fence")
).limit(1)
_PASSED = select(LeaseRow.grant_time, LeaseRow.end_time).where(
    LeaseRow.work_id == bindparam("work"), LeaseRow.kind != WorkKind.FOLLOW
)


def find(session: Session, holder: Holder) -> LeaseRow:
    """The holder's lease in any state, with its job and work loaded. Raises Fenced if there is
    none."""
    found = session.execute(_FIND, {"fence": holder.fence}).one_or_none()
    if found is not None and found[1].project != (holder.project or found[1].project):
        found = None
    return named(None if found is None else found[0], holder)


def named(lease: LeaseRow | None, holder: Holder) -> LeaseRow:
    """A lease by its fence. Raises Fenced if there is none, or its id differs."""
    if lease is None or lease.id != holder.lease_id:
        message = f"there is no lease {holder.lease_id} with fence {holder.fence}"
        raise Fenced(message, lease=holder.lease_id, fence=holder.fence)
    return lease


def require_held(lease: LeaseRow) -> LeaseRow:
    """Raise Fenced unless a lease is held."""
    if lease.state != LeaseState.HELD:
        message = f"the lease {lease.id} has been {lease.state.lower()}"
        raise Fenced(message, lease=lease.id, fence=lease.fence)
    return lease


def load(session: Session, fences: Sequence[int]) -> Mapping[int, LeaseRow]:
    """Several leases at once, by fence."""
    return {
        lease.fence: lease
        for lease in session.scalars(select(LeaseRow).where(LeaseRow.fence.in_(fences)))
    }


def of_asker(session: Session, asker: Asker) -> tuple[LeaseRow | None, Sequence[LeaseRow]]:
    """The lease that the same request got before, and those that the pod holds, oldest first."""
    found = session.scalars(_OF_ASKER, {"request": asker.request_id, "pod": asker.pod}).all()
    former = next((lease for lease in found if lease.request_id == asker.request_id), None)
    return former, [
        lease for lease in found if lease.pod == asker.pod and lease.state == LeaseState.HELD
    ]


def held(
    session: Session, *, job_uid: str | None = None, pod: str | None = None
) -> Sequence[LeaseRow]:
    """The leases that are held, oldest first: all, of a job, of a pod."""
    query = select(LeaseRow).where(LeaseRow.state == LeaseState.HELD)
    if job_uid is not None:
        query = query.where(LeaseRow.job_uid == job_uid)
    if pod is not None:
        query = query.where(LeaseRow.pod == pod)
    return session.scalars(query.order_by(LeaseRow.fence)).all()


def fences(session: Session, job_uid: str) -> Sequence[int]:
    """The fences of a job's held leases."""
    return session.scalars(_FENCES, {"job": job_uid}).all()


@dataclass(frozen=True, slots=True)
class PodLease:
    """The lease that a pod holds, for display."""

    fence: int
    project: str
    job_id: str


def held_by(session: Session, pods: Sequence[str]) -> dict[str, PodLease]:
    """The newest lease of each of `pods`; pods without a lease are left out."""
    query = (
        select(LeaseRow.pod, LeaseRow.fence, JobRow.project, JobRow.job_id)
        .join(JobRow, JobRow.uid == LeaseRow.job_uid)
        .where(LeaseRow.state == LeaseState.HELD, LeaseRow.pod.in_(pods))
    )
    rows = session.execute(query.order_by(LeaseRow.fence))
    return {pod: PodLease(fence, project, job_id) for pod, fence, project, job_id in rows}


def agents_of(session: Session, pods: Sequence[str]) -> dict[str, list[str]]:
    """The agents that each of `pods` trains, in the order of their cohort; other pods are left
    out."""
    query = (
        select(LeaseRow.pod, MemberRow.agent)
        .join(MemberRow, MemberRow.work_id == LeaseRow.work_id)
        .where(LeaseRow.state == LeaseState.HELD, LeaseRow.pod.in_(pods))
    )
    agents: dict[str, list[str]] = {}
    for pod, agent in session.execute(query.order_by(LeaseRow.fence, MemberRow.position)):
        agents.setdefault(pod, []).append(agent)
    return agents


def end(session: Session, job: JobRow, lease: LeaseRow, state: LeaseState, now: datetime) -> None:
    """End a held lease and its followers' leases, and free their reservations. The caller decides
    about the work."""
    others = session.scalar(_ACTIVE, {"job": job.uid, "fence": lease.fence})
    following = followers.of_lead(session, lease.fence)
    accrue(job, now)
    for follower in following:
        _close(session, job, follower, LeaseState.RELEASED, now)
        why = f"{follower.pod} is free: what it followed has ended"
        outbox.record(
            session, job, "FOLLOW_ENDED", why, now=now, subject=follower.pod, fence=follower.fence
        )
    _close(session, job, lease, state, now)
    if others is None:
        job.active_since = None
    touch(session, WORK, POOL, job_topic(job.uid))


def accrue(job: JobRow, now: datetime) -> None:
    """Count the active time up to now."""
    if job.active_since is not None:
        job.active_time_s += max(0.0, (now - job.active_since).total_seconds())
        job.active_since = now


def active_time_s(job: JobRow, now: datetime) -> float:
    """Seconds that the job has been active, up to now."""
    running = now - job.active_since if job.active_since is not None else timedelta()
    return job.active_time_s + max(0.0, running.total_seconds())


def used(job: JobRow, now: datetime) -> Usage:
    """The use of a job, without the reservations of its leases."""
    return Usage(job.env_steps, active_time_s(job, now), job.cost_s)


def usage(session: Session, job: JobRow, now: datetime) -> Usage:
    """The use of a job, and the reservations of its leases beyond their commits."""
    if not plan_of(job).budget.can_be_reserved:
        return used(job, now)
    # One query for all leases: every ask and every completed round of a job asks this, and it may
    # have many pods.
    query = (
        select(
            LeaseRow.reserved_env_steps,
            LeaseRow.reserved_cost_s,
            func.coalesce(func.sum(MemberRow.env_steps - MemberRow.base_env_steps), 0),
            committed_cost_s(),
        )
        .outerjoin(MemberRow, trains_members())
        .where(LeaseRow.state == LeaseState.HELD, LeaseRow.job_uid == job.uid)
        .group_by(LeaseRow.fence)
    )
    steps, cost_s = 0, 0.0
    for reserved_steps, reserved_cost_s, committed_steps, spent_s in session.execute(query):
        steps += max(0, reserved_steps - int(committed_steps))
        cost_s += max(0.0, reserved_cost_s - spent_s)
    return Usage(job.env_steps, active_time_s(job, now), job.cost_s, steps, cost_s)


def running(session: Session, now: datetime) -> dict[str, tuple[int, float]]:
    """The number of held leases of each job that has any, and their uncommitted device seconds by
    the clock."""
    rows = session.execute(_RUNNING, {"now": UtcTime.microseconds(now)})
    return {job_uid: (count, float(seconds)) for job_uid, count, seconds in rows}


def standings(session: Session, job_uid: str) -> Iterable[tuple[int, str, int, int]]:
    """For every agent that a job's leases train: the fence, its name, its steps when the lease
    began, and its committed steps now."""
    query = (
        select(LeaseRow.fence, MemberRow.agent, MemberRow.base_env_steps, MemberRow.env_steps)
        .join(MemberRow, trains_members())
        .where(LeaseRow.state == LeaseState.HELD, LeaseRow.job_uid == job_uid)
    )
    return (
        (fence, agent, begun, committed)
        for fence, agent, begun, committed in session.execute(query)
    )


def trains_members() -> ColumnElement[bool]:
    """The join of leases with the members that they train: a follower's lease has none of its
    own."""
    return (MemberRow.work_id == LeaseRow.work_id) & (LeaseRow.kind != WorkKind.FOLLOW)


def committed_cost_s() -> ColumnElement[float]:
    """The cost that a lease has added to its job so far, for leases so joined and grouped by their
    fence."""
    return func.coalesce(func.sum(MemberRow.cost_s - MemberRow.base_cost_s), 0.0) + LeaseRow.cost_s


def _running() -> Select[str, int, float]:
    age_s = (
        bindparam("now", type_=BigInteger) - type_coerce(LeaseRow.grant_time, BigInteger)
    ) / 1e6
    open_s = age_s - committed_cost_s()
    each = (
        select(LeaseRow.job_uid, case((open_s > 0.0, open_s), else_=0.0).label("open_s"))
        .outerjoin(MemberRow, trains_members())
        .where(LeaseRow.state == LeaseState.HELD)
        .group_by(LeaseRow.fence)
        .subquery()
    )
    return select(each.c.job_uid, func.count(), func.sum(each.c.open_s)).group_by(each.c.job_uid)


_RUNNING = _running()


def round_left(session: Session, work: WorkRow, whole: RoundLimits) -> RoundLimits:
    """The rest of a work's round after the commits of its earlier leases."""
    members = work.members
    # Members train in step; where one stopped early, the others decide. What was not committed is
    # done once more.
    ended = session.execute(_PASSED, {"work": work.id})
    passed_s = sum((end - begin).total_seconds() for begin, end in ended if end is not None)
    spent_s = min(passed_s, sum(each.cost_s for each in members))
    return whole.after(max((each.env_steps for each in members), default=0), spent_s)


def _new(job: JobRow, work_id: str, kind: str, asker: Asker, now: datetime) -> LeaseRow:
    return LeaseRow(
        id=secrets.token_hex(8),
        work_id=work_id,
        job_uid=job.uid,
        kind=kind,
        pod=asker.pod,
        instance_id=asker.instance_id,
        request_id=asker.request_id,
        state=LeaseState.HELD,
        active_time_s=job.active_time_s,
        cost_s=0.0,
        left_for="",
        grant_time=now,
    )


def _close(
    session: Session, job: JobRow, lease: LeaseRow, state: LeaseState, now: datetime
) -> None:
    followers.count_cost(job, lease, now)
    lease.cost_since = None
    lease.state = state
    lease.end_time = now
    pod = _set_pod(
        session, lease.pod, PodState.LOST if state is LeaseState.EXPIRED else PodState.IDLE
    )
    if pod is not None and state is not LeaseState.EXPIRED:
        # else, after a long lease, it would pass for a silent one
        pod.last_seen_time = max(pod.last_seen_time, now)


def _set_pod(session: Session, name: str, state: PodState) -> PodRow | None:
    pod = session.get(PodRow, name)
    if pod is not None and pod.state not in (PodState.DRAINING, PodState.STOPPED):
        pod.state = state
    return pod


@dataclass(slots=True)
class LiveReport:
    """A pod's last renewal: totals of its lease, for display only."""

    member_env_steps: Mapping[str, int] = field(default_factory=dict)
    env_steps_per_second: float = 0.0
    time: datetime | None = None


@dataclass(slots=True)
class _Term:
    job_uid: str
    deadline: float
    live: LiveReport = field(default_factory=LiveReport)


class LeaseDeadlines:
    """The deadlines of the held leases, by fence.

    A lease without a deadline here is refused. Only `begin` adds one, so an ended lease is never
    renewed. Thread-safe: each call is atomic, or reads a copy."""

    def __init__(self, clock: Clock, term_s: float) -> None:
        self.term_s = term_s
        self._clock = clock
        self._terms: dict[int, _Term] = {}
        self._reports: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._counting = threading.Lock()

    def begin(self, fence: int, job_uid: str) -> None:
        """Give a new lease, or one found after a restart, a full term."""
        self.end(fence)
        with self._counting:
            self._held[job_uid] += 1
            self._terms[fence] = _Term(job_uid, self._clock.monotonic() + self.term_s)

    def is_running(self, fence: int) -> bool:
        """Whether the lease's deadline is still to come."""
        return self._running(fence) is not None

    def job_of(self, fence: int) -> str:
        """The job that a lease belongs to. Raises Fenced if it has ended."""
        return self._get(fence).job_uid

    def reports(self, job_uid: str) -> int:
        """The number of reports of pods about leases of a job."""
        return self._reports[job_uid]

    def check(self, fence: int) -> None:
        """Raise Fenced unless the lease still runs."""
        self._get(fence)

    def renew(self, fence: int, live: LiveReport | None = None) -> None:
        """Give the lease another full term. Raises Fenced if it has ended."""
        term = self._get(fence)
        term.deadline = self._clock.monotonic() + self.term_s
        if live is not None:
            term.live = live
            self._reports[term.job_uid] += 1

    def end(self, fence: int) -> None:
        """Forget a lease."""
        with self._counting:
            term = self._terms.pop(fence, None)
            if term is None:
                return
            self._held[term.job_uid] -= 1
            if not self._held[term.job_uid]:
                del self._held[term.job_uid]
                self._reports.pop(term.job_uid, None)

    def expired(self) -> list[int]:
        """The fences of the leases whose deadline has passed, oldest first."""
        now = self._clock.monotonic()
        return sorted(fence for fence, term in list(self._terms.items()) if now >= term.deadline)

    def next_deadline(self) -> float | None:
        """The time when the next lease expires unless it is renewed; None without a held lease."""
        return min((term.deadline for term in list(self._terms.values())), default=None)

    def live(self, fence: int) -> LiveReport:
        """The last report of the lease's pod."""
        term = self._terms.get(fence)
        return term.live if term is not None else LiveReport()

    def env_steps_per_second(self, fences: Iterable[int]) -> float:
        """Environment steps per second of these leases together, as last reported."""
        return sum(self.live(fence).env_steps_per_second for fence in fences)

    def _running(self, fence: int) -> _Term | None:
        term = self._terms.get(fence)
        return term if term is not None and self._clock.monotonic() < term.deadline else None

    def _get(self, fence: int) -> _Term:
        term = self._running(fence)
        if term is None:
            raise Fenced(f"the lease with fence {fence} has ended", fence=fence)
        return term
