"""Keeps the number of pods right: what the jobs want, shared out over what the machine has."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer_core.errors import PodracerError
from podracer_orchestrator.jobs import ACTIVE_STATES, PodKind, jobs, plan_of
from podracer_orchestrator.leases import leases
from podracer_orchestrator.pool import pods
from podracer_orchestrator.pool.backend import Capacity, PodObserver, PodPlan, PoolBackend, Trouble
from podracer_orchestrator.pool.capacity import choose_pods, impossibility
from podracer_orchestrator.pool.local_pod import LEARNER
from podracer_orchestrator.pool.shares import PoolShares
from podracer_orchestrator.tables import JobRow, PodRow, PodState, WorkKind
from podracer_orchestrator.transactions import POOL, WORK, ChangeFeed, Clock, Transactions, touch
from podracer_platform.telemetry import PODS_WANTED

logger = logging.getLogger(__name__)

MAX_DEATHS = 10
"""Deaths of a pod's processes in a row, without a commit of those it works for between them, before
these fail."""
FROZEN_S = 30.0
"""How long a pod that has lost its lease, but whose processes are there, may be silent before it is
started again."""
SPARE_S = 5.0
"""How long one idle pod is kept that no job needs: the next job may come at once."""
_NOTHING = (0.0, 0)
_UNWANTED = (PodState.DRAINING, PodState.STOPPED)
_TICK_S = 2.0
"""The machine is looked at this often at most, and at least while nothing happens."""
_RETRY_S = 1.0
_REST = 4.0
"""Rest after a plan, in multiples of the plan's processor time."""


class PoolReconciler(PodObserver):
    """Tells the backend which pods are wanted, and the database what became of them."""

    def __init__(
        self,
        transactions: Transactions,
        lose_pod: Callable[[str, cohort_pb2.Problem | None, str], Awaitable[None]],
        shares: PoolShares,
        changes: ChangeFeed,
        clock: Clock,
    ) -> None:
        """`lose_pod` ends the leases of a pod whose learner is gone
        (`LeaseOperations.lose_pod`)."""
        self._transactions = transactions
        self._lose_pod = lose_pod
        self._shares = shares
        self._changes = changes
        self._clock = clock
        self._backend: PoolBackend | None = None
        # pod: in a row; where its jobs stood
        self._deaths: dict[str, tuple[int, Collection[tuple[str, int]]]] = {}
        self._lost_since: dict[str, float] = {}
        self._spare_since: dict[str, float] = {}
        self._measured_at = -math.inf
        self._plan_s = 0.0
        self._stopping = asyncio.Event()

    async def adopt(self, backend: PoolBackend) -> None:
        """Take a backend; the pods that a former process of ours had made died with it, or go
        on."""
        self._backend = backend
        self._shares.attach(backend)
        former = await self._transactions.read(
            lambda session: [pod.name for pod in pods.of_backend(session, backend.name)]
        )
        for name in former if backend.dies_with_us else ():
            await self._lose_pod(name, None, "it ended with the orchestrator before this one")
            await self._transactions.write(
                functools.partial(pods.set_state, name=name, state=PodState.STOPPED)
            )
        await backend.start([] if backend.dies_with_us else former)

    async def check(self) -> None:
        """Raise while no pods can be made, as this is deployed."""
        if self._backend is not None:
            await self._backend.check()

    async def run(self) -> None:
        """Reconcile whenever something has changed, for ever; more rarely the longer it takes."""
        while True:
            version = self._changes.version(POOL)
            try:
                await self.reconcile()
                await asyncio.sleep(min(_TICK_S, _REST * self._plan_s))
                await self._changes.wait(POOL, version, _TICK_S)
            except PodracerError as error:
                logger.error("cannot update the pool, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def reconcile(self) -> None:
        """Have the pods that the jobs want, and no others."""
        assert self._backend is not None, "adopt comes first"
        if self._clock.monotonic() - self._measured_at >= _TICK_S:
            await self._backend.measure()
            self._measured_at = self._clock.monotonic()
        if self._stopping.is_set() or self._backend.capacity is None:
            return
        plans, frozen = await self._transactions.write(self._timed_plan)
        if self._stopping.is_set():
            return
        PODS_WANTED.set(len(plans))
        await self._backend.reconcile(plans)
        for name in frozen:
            logger.warning(
                "pod %s has been silent for %.0f s: restarting its learner", name, FROZEN_S
            )
            self._backend.restart(name)

    async def stop(self) -> None:
        """Stop every pod."""
        self._stopping.set()
        assert self._backend is not None, "adopt comes first"
        await self._backend.stop()

    async def check_active(self) -> None:
        await self._transactions.check()

    async def process_died(self, pod: str, role: str, why: str, log_tail: str) -> bool:
        """A dead learner's lease is free at once; a pod that keeps dying fails its jobs with the
        end of its log."""
        logger.warning("pod %s: %s", pod, why)
        restart = await self._transactions.write(
            lambda session: self._note_death(session, pod, why, log_tail)
        )
        if role == LEARNER:
            problem = cohort_pb2.Problem(
                reason="LEARNER_DIED", message=f"{pod}: {why}", detail=log_tail
            )
            await self._lose_pod(pod, problem, why)
        return restart and not self._stopping.is_set()

    async def pod_lost(self, pod: str, why: str) -> None:
        logger.info("pod %s: %s", pod, why)
        await self._lose_pod(pod, None, why)

    async def pod_stranded(self, pod: str, why: str) -> None:
        await self._transactions.write(
            lambda session: pods.set_state(session, pod, PodState.DRAINING, why)
        )
        self._changes.notify([POOL])

    async def pods_troubled(self, troubles: Mapping[str, Trouble | None]) -> None:
        await self._transactions.write(
            lambda session: pods.note_troubles(session, troubles, self._clock.now())
        )

    async def pod_stopped(self, pod: str) -> None:
        for known in (self._deaths, self._lost_since, self._spare_since):
            known.pop(pod, None)
        await self._lose_pod(pod, None, "it was stopped")
        await self._transactions.write(
            lambda session: pods.set_state(session, pod, PodState.STOPPED)
        )
        self._changes.notify([POOL])

    def _timed_plan(self, session: Session) -> tuple[Sequence[PodPlan], Sequence[str]]:
        begun = time.thread_time()
        found = self._plan(session)
        self._plan_s = time.thread_time() - begun
        return found

    def _plan(self, session: Session) -> tuple[Sequence[PodPlan], Sequence[str]]:
        """The pods that are wanted, and those of them that seem to be frozen."""
        assert self._backend is not None and self._backend.capacity is not None, (
            "asked only of a backend that knows"
        )
        capacity = self._backend.capacity
        self._shares.note_machine(session)
        self._fail_impossible(session, capacity)
        wanted, needs = self._wanted(session), _needs(session)
        threads = _threads(wanted, capacity.cores) if capacity.growth is None else 0
        there = pods.of_backend(session, self._backend.name)
        for pod in there:
            if capacity.asked_bytes.get(pod.name, math.inf) < needs.get(pod.kind, _NOTHING)[1]:
                _drain(session, pod, "a job asks for more memory than it has")
        choice = choose_pods(wanted, there, leases.held(session))
        pods.make(session, choice.new, self._backend.name, self._clock.now())
        kept = [*choice.kept, *self._spares([] if choice.new else choice.surplus)]
        plans = [
            PodPlan(name, kind, kind.threads or threads, *needs.get(kind.name, _NOTHING))
            for name, kind in {
                **choice.new,
                **{pod.name: PodKind.parse(pod.kind) for pod in kept},
            }.items()
        ]
        for pod in choice.surplus:
            if pod not in kept:
                _drain(session, pod)
        return plans, [pod.name for pod in kept if self._is_frozen(pod)]

    def _wanted(self, session: Session) -> Mapping[PodKind, int]:
        """The number of pods of each kind that the jobs are to have."""
        wanted: dict[PodKind, int] = {}
        for job_uid, count in self._shares.shares(session).counts.items():
            kind = plan_of(jobs.get_by_uid(session, job_uid)).kind
            wanted[kind] = wanted.get(kind, 0) + count
        return wanted

    def _spares(self, surplus: Sequence[PodRow]) -> Sequence[PodRow]:
        """The one idle pod that is kept for a while though no job needs it."""
        now = self._clock.monotonic()
        idle = [pod for pod in surplus if pod.state == PodState.IDLE][:1]
        self._spare_since = {pod.name: self._spare_since.get(pod.name, now) for pod in idle}
        return [pod for pod in idle if now - self._spare_since[pod.name] < SPARE_S]

    def _fail_impossible(self, session: Session, capacity: Capacity) -> None:
        """End the jobs that ask for more than this machine will ever have: no waiting would
        help."""
        for job in jobs.in_states(session, ACTIVE_STATES):
            problem = impossibility(plan_of(job), capacity)
            if problem is not None:
                jobs.fail(session, job, problem, self._clock.now())

    def _is_frozen(self, pod: PodRow) -> bool:
        """A lost pod asks for work again when it is alive; one that does not for long is started
        again."""
        now = self._clock.monotonic()
        if pod.state != PodState.LOST:
            self._lost_since.pop(pod.name, None)
            return False
        if now - self._lost_since.setdefault(pod.name, now) < FROZEN_S:
            return False
        self._lost_since[pod.name] = now
        return True

    def _note_death(self, session: Session, pod: str, why: str, log_tail: str) -> bool:
        """Whether the process is to be started again."""
        now = self._clock.now()
        row = session.get(PodRow, pod)
        if row is None or row.state in _UNWANTED:
            return False
        concerned = _concerned(session, row)
        pods.note_restart(session, row, concerned, why, now)
        kinds = {lease.kind for lease in leases.held(session, pod=pod)}
        if kinds - {WorkKind.INSPECT, WorkKind.TRAIN}:
            return True  # these fail nothing but themselves; attempts of all but FOLLOW are counted
        stand = {(job.uid, job.env_steps) for job in concerned}
        deaths, former = self._deaths.get(pod, (0, stand))
        deaths = deaths + 1 if stand == former else 1
        self._deaths[pod] = (deaths, stand)
        if deaths < MAX_DEATHS:
            return True
        message = f"{pod} died {deaths} times in a row without progress; the last time {why}"
        for job in concerned:
            detail = log_tail if pods.may_read_log(session, row, job) else ""
            problem = cohort_pb2.Problem(reason="POD_KEEPS_DYING", message=message, detail=detail)
            jobs.fail(session, job, problem, now)
        pods.set_state(session, pod, PodState.DRAINING, message)
        return False


def _concerned(session: Session, pod: PodRow) -> Sequence[JobRow]:
    """The active jobs that the death of a pod's process concerns: whose lease it holds, else all
    that it may serve."""
    active = jobs.in_states(session, ACTIVE_STATES)
    holders = {lease.job_uid for lease in leases.held(session, pod=pod.name)}
    return [job for job in active if (job.uid in holders if holders else pods.can_serve(pod, job))]


def _drain(session: Session, pod: PodRow, why: str = "") -> None:
    """Have a pod hand back what it holds, and end; one that waits for work hears of it at once."""
    pods.set_state(session, pod.name, PodState.DRAINING, why)
    touch(session, WORK)


def _needs(session: Session) -> Mapping[str, tuple[float, int]]:
    """Cores and bytes that the greediest active job of each kind of pods asks for; 0 where none
    says anything."""
    found: dict[str, tuple[float, int]] = {}
    for job in jobs.in_states(session, ACTIVE_STATES):
        plan = plan_of(job)
        cores, size_bytes = found.get(plan.kind.name, _NOTHING)
        cores = max(cores, plan.cpu if plan.kind.threads else 0.0)
        found[plan.kind.name] = cores, max(size_bytes, plan.memory_bytes)
    return found


def _threads(wanted: Mapping[PodKind, int], cores: float) -> int:
    """Threads of each new process, so that all together do not outnumber the cores (they would
    collapse).

    Processes that run already keep theirs. A kind that says its threads has those.
    """
    processes = sum(count * kind.busy_processes for kind, count in wanted.items())
    return max(1, int(cores) // max(1, processes))
