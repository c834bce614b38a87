"""The jobs' shares of the pool: the order in which jobs are offered a free pod, and how many pods
each is to have."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer_orchestrator.jobs import (
    ACTIVE_STATES,
    JobState,
    PodKind,
    Quotas,
    jobs,
    plan_of,
    quotas,
)
from podracer_orchestrator.leases import leases
from podracer_orchestrator.pool import pods
from podracer_orchestrator.pool.backend import Capacity, PoolBackend
from podracer_orchestrator.pool.scheduling import (
    Demand,
    FairShare,
    Load,
    MemoryBudget,
    MemoryNeeds,
    MemoryView,
    Room,
    Shares,
    share_pods,
)
from podracer_orchestrator.tables import JobRow, PodRow, PodState
from podracer_orchestrator.transactions import Clock

TURN_S = 30.0
"""If not all kinds of pods fit, one kind gives way to another once its jobs are this many device
seconds ahead."""
STEADY = timedelta(seconds=20)
"""Age from which a pod counts as steady: a younger one has not taken all the memory yet that it
needs."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The jobs that a free pod could work for, whose turn it is first; `full` are those with all
    the pods they want."""

    jobs: Sequence[JobRow]
    full: frozenset[str]
    loads: Sequence[Load]


class PoolShares:
    """Decides by what jobs have used (FairShare) and by what the pool has room for (share_pods)."""

    def __init__(self, clock: Clock, quotas: Quotas | None = None) -> None:
        self._clock = clock
        self._quotas = quotas or Quotas()
        # operations that read run beside the writing one
        self._fair, self._fair_lock = FairShare(), threading.Lock()
        self._needs = MemoryNeeds()
        self._memory = MemoryBudget()
        self._memory_bytes = math.inf
        self._backend: PoolBackend | None = None

    def attach(self, backend: PoolBackend) -> None:
        """Begin to share the pods of `backend`."""
        self._backend = backend

    @property
    def capacity(self) -> Capacity | None:
        """The pool's capacity when it was last read; None if its pods start by themselves."""
        return self._backend.capacity if self._backend is not None else None

    @property
    def has_gpus(self) -> bool:
        """Whether pods find a GPU whose job asks for none: on this machine, unless PODRACER_DEVICE
        rules that out."""
        is_ruled_out = os.environ.get("PODRACER_DEVICE", "auto") == "cpu"
        return self.capacity is not None and self.capacity.gpus > 0 and not is_ruled_out

    @property
    def backend_name(self) -> str:
        """See Pod.backend."""
        return self._backend.name if self._backend is not None else pods.STATIC

    @property
    def room(self) -> Room:
        """Limits of all pods together at present."""
        capacity = self.capacity
        if capacity is None:
            return Room()
        if capacity.growth is not None:
            return Room(max_pods=capacity.max_pods, growth=capacity.growth)
        return Room(capacity.cores, self._memory_bytes, capacity.usable_gpus, capacity.max_pods)

    def offer(self, session: Session, pod: PodRow) -> Offer:
        """The offer of a free pod: the jobs that may take it, in their order."""
        active = {job.uid: job for job in jobs.in_states(session, ACTIVE_STATES)}
        loads = self._loads(session, list(active.values()))
        full = {
            load.job_uid for load in loads if load.held >= plan_of(active[load.job_uid]).max_pods
        }
        exhausted = self._exhausted(session, {job.project for job in active.values()})
        full |= {job.uid for job in active.values() if job.project in exhausted}
        with self._fair_lock:
            ordered = [active[uid] for uid in self._fair.order(loads)]
        return Offer([job for job in ordered if pods.can_serve(pod, job)], frozenset(full), loads)

    def may_take(self, session: Session, pod: PodRow, job: JobRow) -> bool:
        """Whether a job may have this pod, too."""
        is_full = len(leases.fences(session, job.uid)) >= plan_of(job).max_pods
        if is_full or JobState(job.state) not in ACTIVE_STATES or not pods.can_serve(pod, job):
            return False
        return job.project not in self._exhausted(session, {job.project})

    def took(self, offer: Offer, taker: JobRow, passed_over: Sequence[str]) -> None:
        """`taker` got the pod, which the jobs `passed_over` could not take."""
        with self._fair_lock:
            self._fair.level(passed_over, taker.uid, offer.loads)

    def note_machine(self, session: Session) -> None:
        """Draw the conclusions from what the backend has measured: what pods need, and what they
        may take."""
        capacity, backend = self.capacity, self._backend
        if capacity is None or backend is None or capacity.growth is not None:
            return
        present = [
            pod for pod in pods.of_backend(session, backend.name) if pod.state != PodState.DRAINING
        ]
        for pod in present:
            use, age = capacity.pods.get(pod.name), self._clock.now() - pod.create_time
            if use is not None and pod.state == PodState.WORKING and age >= STEADY:
                self._needs.note(pod.kind, use.memory_bytes)
        needs = [self._needs.of(PodKind.parse(pod.kind)) for pod in present]
        view = MemoryView(
            total=capacity.memory_bytes,
            available=capacity.available_bytes,
            pods=sum(use.memory_bytes for use in capacity.pods.values()),
            promised=sum(needs),
            newest=needs[-1] if needs else 0,
        )
        self._memory_bytes = self._memory.update(view, self._clock.monotonic())

    def memory_need(self, kind: PodKind, asked_bytes: int = 0) -> int:
        """Bytes that a pod needs; see MemoryNeeds.of."""
        return self._needs.of(kind, asked_bytes)

    def demands(self, session: Session) -> Sequence[Demand]:
        """The demands of the active jobs, in the order of their turns. One pod is enough to inspect
        an environment, or for the last evaluations.

        Those whose kind of pod is there keep their place for a while: starting another kind takes
        its time."""
        active = jobs.in_states(session, ACTIVE_STATES)
        loads = self._loads(session, active)
        with self._fair_lock:
            turns = self._fair.turns(loads)
        present = set(session.scalars(select(PodRow.kind).where(PodRow.state.not_in(pods.ABSENT))))
        found = []
        for job in active:
            plan = plan_of(job)
            needs_one = job.state == JobState.VALIDATING or job.rounds_over
            least, most = (1, 1) if needs_one else (plan.min_pods, plan.max_pods)
            need = self.memory_need(plan.kind, plan.memory_bytes)
            found.append(Demand(job.uid, plan.weight, least, most, plan.cpu, need, plan.kind))
        wanted = self._within_quotas(active, found)
        ahead = {
            demand.job_uid: TURN_S if demand.kind.name in present else 0.0 for demand in wanted
        }
        return sorted(wanted, key=lambda demand: turns[demand.job_uid] - ahead[demand.job_uid])

    def _within_quotas(
        self, active: Sequence[JobRow], demands: Sequence[Demand]
    ) -> Sequence[Demand]:
        """The demands, with fewer pods where a project may not have as many."""
        projects = {job.uid: job.project for job in active}
        cut: dict[str, int] = {}
        for project in set(projects.values()):
            limit = self._quotas.of(project).pods
            if math.isfinite(limit):
                own = [demand for demand in demands if projects[demand.job_uid] == project]
                cut |= share_pods(own, Room(max_pods=int(limit))).counts
        return [
            replace(demand, min_pods=min(demand.min_pods, most), max_pods=most)
            if (most := min(demand.max_pods, cut.get(demand.job_uid, demand.max_pods)))
            < demand.max_pods
            else demand
            for demand in demands
        ]

    def shares(self, session: Session) -> Shares:
        """How many pods each active job is to have, of those that the pool makes."""
        return share_pods(self.demands(session), self.room)

    def expected(self, session: Session, job: JobRow) -> int:
        """The number of pods that share the work of a job, at least 1; others of the pool may still
        be starting, but in a cluster they have their places."""
        demands = self.demands(session)
        if self.capacity is None:
            rivals = [
                demand
                for demand in demands
                if jobs.get_by_uid(session, demand.job_uid).project == job.project
            ]
            shares = share_pods(rivals, Room(max_pods=pods.count_serving(session, job)))
        else:
            room = self.room
            placed = None if room.growth is None else replace(room.growth, max_pending=0)
            shares = share_pods(demands, replace(room, growth=placed))
        return max(1, shares.counts.get(job.uid, 0))

    def _exhausted(self, session: Session, projects: Collection[str]) -> set[str]:
        """Projects, of those given, that have all the pods that their quota allows."""
        limits = {project: self._quotas.of(project).pods for project in projects}
        if all(map(math.isinf, limits.values())):
            return set()
        working = quotas.pods_of(session)
        return {project for project, limit in limits.items() if working.get(project, 0) >= limit}

    def _loads(self, session: Session, active: Sequence[JobRow]) -> Sequence[Load]:
        """The use of each job: the committed cost, and by the clock what its leases have used
        beyond it."""
        running = leases.running(session, self._clock.now())
        found = []
        for job in active:
            plan, (held, used_s) = plan_of(job), running.get(job.uid, (0, 0.0))
            found.append(Load(job.uid, plan.weight, job.cost_s + used_s, held, plan.kind.name))
        return found
