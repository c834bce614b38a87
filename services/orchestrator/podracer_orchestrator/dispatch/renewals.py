"""Orders for pods; and renewals of leases: the orders for pods, read once for all leases of a job,
and the pods' evaluations, which are stored together."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import PodracerError, Unavailable
from podracer_orchestrator.jobs import ACTIVE_STATES, JobState, jobs, plan_of
from podracer_orchestrator.leases import Holder, LeaseDeadlines, leases
from podracer_orchestrator.outcomes import record_evaluations, work_of
from podracer_orchestrator.tables import JobRow, LeaseRow, LeaseState, PodRow, PodState, WorkKind
from podracer_orchestrator.transactions import ChangeFeed, Clock, Transactions, job_topic
from podracer_orchestrator.works import check_evaluations, checkpoints

FRESH_S = 1.0
"""How long an answer is valid while the job is unchanged: some depend on the time."""
MOST_KNOWN, FORGET_S = 256, 60.0
AT_ONCE = 100
"""The most pods whose evaluations are stored together."""
PAUSE_S = 0.03
"""Seconds between two such transactions: evaluations that arrive meanwhile share the next one."""

Action: TypeAlias = pod_pb2.LeaseAction.ValueType


@dataclass(frozen=True, slots=True)
class _Known:
    version: int
    time: float
    actions: Mapping[int, Action]


class LeaseActions:
    """The present actions of each job's leases."""

    def __init__(self, transactions: Transactions, changes: ChangeFeed, clock: Clock) -> None:
        self._transactions = transactions
        self._changes = changes
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of_job(self, job_uid: str) -> Mapping[int, Action]:
        """The actions of a job's held leases by fence; see `actions`."""
        async with self._reading[job_uid]:
            version, now = self._changes.version(job_topic(job_uid)), self._clock.monotonic()
            known = self._known.get(job_uid)
            if known is None or known.version != version or now - known.time >= FRESH_S:
                found = await self._transactions.read(
                    lambda session: actions(session, job_uid, self._clock.now())
                )
                known = self._known[job_uid] = _Known(version, now, found)
        self._forget_old(now)
        return known.actions

    def _forget_old(self, now: float) -> None:
        """Drop answers that were not used lately, once there are many."""
        if len(self._known) <= MOST_KNOWN:
            return
        for job_uid, known in list(self._known.items()):
            if now - known.time > FORGET_S and not self._reading[job_uid].locked():
                self._known.pop(job_uid)
                self._reading.pop(job_uid)


def actions(session: Session, job_uid: str, now: datetime) -> Mapping[int, Action]:
    """The action for the holder of each lease of a job. Evaluations that take too long are left
    out."""
    query = (
        select(
            LeaseRow.fence, LeaseRow.lead_fence, LeaseRow.kind, LeaseRow.grant_time, PodRow.state
        )
        .outerjoin(PodRow, PodRow.name == LeaseRow.pod)
        .where(LeaseRow.state == LeaseState.HELD, LeaseRow.job_uid == job_uid)
    )
    held = [_Held(*row) for row in session.execute(query)]
    if not held:
        return {}
    job = session.get_one(JobRow, job_uid)
    others = _of_job(job, now)
    released = (
        _too_many(job, held)
        if JobState(job.state) in ACTIVE_STATES
        else {each.fence for each in held}
    )
    found: dict[int, Action] = {}
    for each in held:
        if work_of(each.kind).is_overdue(each.grant_time, now):
            continue
        if each.pod_state in (PodState.DRAINING, PodState.STOPPED):
            found[each.fence] = pod_pb2.LEASE_ACTION_DRAIN
        elif each.fence in released:
            found[each.fence] = pod_pb2.LEASE_ACTION_RELEASE
        else:
            found[each.fence] = (
                others if each.kind == WorkKind.TRAIN else pod_pb2.LEASE_ACTION_CONTINUE
            )
    return found


@dataclass(frozen=True, slots=True)
class _Held:
    """A held lease, and the state of its pod; None of one that is not known."""

    fence: int
    lead_fence: int | None
    kind: str
    grant_time: datetime
    pod_state: str | None


def _of_job(job: JobRow, now: datetime) -> Action:
    """The orders of all pods that train for the job."""
    if job.time_to_target_s is not None:
        return pod_pb2.LEASE_ACTION_FINISH  # the job only waits for its ensemble
    limit_s = plan_of(job).budget.active_time_s
    if limit_s is not None and leases.active_time_s(job, now) >= limit_s:
        return pod_pb2.LEASE_ACTION_FINISH
    return pod_pb2.LEASE_ACTION_CONTINUE


def _too_many(job: JobRow, held: list[_Held]) -> set[int]:
    """The leases to end if the job wants fewer pods or teams than hold leases: the newest, teams
    with all followers."""
    plan = plan_of(job)
    leads = sum(each.kind == WorkKind.TRAIN for each in held)
    if len(held) <= plan.max_pods and leads <= plan.max_teams:
        return set()
    staying = [each for each in held if each.pod_state != PodState.DRAINING]
    ranked = sorted(staying, key=lambda each: (each.lead_fence or each.fence, each.fence))
    leading = [each for each in ranked if each.kind == WorkKind.TRAIN]
    return {each.fence for each in [*ranked[plan.max_pods :], *leading[plan.max_teams :]]}


@dataclass(frozen=True, slots=True)
class _Received:
    holder: Holder
    evaluations: Sequence[agent_pb2.Evaluation]
    stored: asyncio.Future[None]


class EvaluationBatcher:
    """Stores evaluations; those that arrive meanwhile go together into the next transaction."""

    def __init__(self, transactions: Transactions, deadlines: LeaseDeadlines, clock: Clock) -> None:
        self._transactions = transactions
        self._deadlines = deadlines
        self._clock = clock
        self._waiting: list[_Received] = []
        self._storing: asyncio.Task[None] | None = None

    async def store(self, holder: Holder, evaluations: Sequence[agent_pb2.Evaluation]) -> None:
        """Returns once they are durable. A repeated evaluation is recorded once, by its id.

        Raises Fenced unless the lease is held, and InvalidInput for an evaluation that is not of
        its cohort."""
        received = _Received(holder, evaluations, asyncio.get_running_loop().create_future())
        self._waiting.append(received)
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_all())
        await received.stored

    async def _store_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            await self._answer(batch)
            await asyncio.sleep(PAUSE_S)

    async def _answer(self, batch: Sequence[_Received]) -> None:
        """Store them together; if one of them fails, one by one."""
        problems: Sequence[Exception | None]
        try:
            problems = await self._transactions.write(functools.partial(self._store, batch=batch))
        except Exception as error:  # noqa: BLE001 - it is raised where the evaluations came from
            if len(batch) > 1 and not isinstance(error, Unavailable):
                for each in batch:
                    await self._answer([each])
                return
            problems = [error] * len(batch)
        for each, problem in zip(batch, problems, strict=True):
            if each.stored.done():
                continue  # its pod has hung up
            if problem is None:
                each.stored.set_result(None)
            else:
                each.stored.set_exception(problem)

    def _store(self, session: Session, batch: Sequence[_Received]) -> list[PodracerError | None]:
        """The error of each refused one; the others are stored."""
        loaded = leases.load(session, [each.holder.fence for each in batch])
        agents = checkpoints.agents_of(session, [lease.work_id for lease in loaded.values()])
        problems: list[PodracerError | None] = []
        sound: dict[str, list[tuple[LeaseRow, Sequence[agent_pb2.Evaluation]]]] = {}  # by job
        for each in batch:
            try:
                lease = leases.require_held(
                    leases.named(loaded.get(each.holder.fence), each.holder)
                )
                self._deadlines.check(lease.fence)
                checkpoints.require_lead(lease)
                check_evaluations(each.evaluations, agents.get(lease.work_id, []))
            except PodracerError as error:
                problems.append(error)
            else:
                problems.append(None)
                sound.setdefault(lease.job_uid, []).append((lease, each.evaluations))
        concerned = jobs.load(session, sound)
        for job in concerned:
            record_evaluations(session, job, sound[job.uid], self._clock.now())
        return problems


logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two readings of an unchanged job: some orders depend on the time."""
WORD_S = 60.0
"""The longest time between two messages to a holder."""


class Orders:
    """Streams of orders. A job's actions are read once for all of its leases, once a second at
    most."""

    def __init__(
        self, actions: LeaseActions, deadlines: LeaseDeadlines, changes: ChangeFeed
    ) -> None:
        self._actions = actions
        self._deadlines = deadlines
        self._changes = changes
        self._listeners: Counter[str] = Counter()  # by job
        self._orders: dict[str, Mapping[int, Action]] = {}  # by job and fence, without CONTINUE
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._draining = False

    async def watch(self, fence: int) -> AsyncIterator[Action]:
        """Stream orders until the lease ends, or this server drains. Raises Fenced if it has ended
        before."""
        job_uid = self._deadlines.job_of(fence)
        with self._listening(job_uid):
            while self._deadlines.is_running(fence) and not self._draining:
                version = self._changes.version(_topic(job_uid))
                yield self._orders.get(job_uid, {}).get(fence, pod_pb2.LEASE_ACTION_CONTINUE)
                await self._changes.wait(_topic(job_uid), version, WORD_S)

    def drain(self) -> None:
        """End every stream."""
        self._draining = True
        self._changes.notify([_topic(job_uid) for job_uid in self._listeners])

    @contextmanager
    def _listening(self, job_uid: str) -> Iterator[None]:
        """Read the job while it has listeners."""
        self._listeners[job_uid] += 1
        if job_uid not in self._tasks:
            self._tasks[job_uid] = asyncio.create_task(self._look(job_uid))
        try:
            yield
        finally:
            self._listeners[job_uid] -= 1
            if not self._listeners[job_uid]:
                del self._listeners[job_uid]
                self._tasks.pop(job_uid).cancel()
                self._orders.pop(job_uid, None)

    async def _look(self, job_uid: str) -> None:
        while True:
            version = self._changes.version(job_topic(job_uid))
            try:
                found = await self._actions.of_job(job_uid)
            except PodracerError as error:
                logger.warning("cannot read the orders of a job, retrying: %s", error)
            else:
                orders = {
                    fence: each
                    for fence, each in found.items()
                    if each != pod_pb2.LEASE_ACTION_CONTINUE
                }
                if orders != self._orders.get(job_uid, {}):
                    self._orders[job_uid] = orders
                    self._changes.notify([_topic(job_uid)])
            await asyncio.sleep(FRESH_S)
            await self._changes.wait(job_topic(job_uid), version, LOOK_S)


def _topic(job_uid: str) -> str:
    return f"orders/{job_uid}"
