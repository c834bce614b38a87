"""Keeps the number of pods right: what the jobs want, shared out over what the machine has."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import PodracerError
from podracer_core.jobs.messages import seconds_to_duration
from podracer_orchestrator import jobs, pods
from podracer_orchestrator.changes import POOL, ChangeFeed
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.job_plan import plan_of
from podracer_orchestrator.job_state import ACTIVE_STATES, JobState
from podracer_orchestrator.lease_keeping import LeaseKeeper
from podracer_orchestrator.names import job_name, pod_name
from podracer_orchestrator.pool.backend import PodObserver, PodPlan, PoolBackend
from podracer_orchestrator.pool.pod import LEARNER
from podracer_orchestrator.scheduling import Demand, share_pods
from podracer_orchestrator.tables import JobRow, PodRow, PodState
from podracer_orchestrator.transactions import Transactions

logger = logging.getLogger(__name__)

MAX_DEATHS = 10
"""Deaths of a pod's processes in a row, without a commit of its job between them, before the job fails."""
_UNWANTED = (PodState.DRAINING, PodState.STOPPED)
FROZEN_S = 30.0
"""How long a pod that has lost its lease, but whose processes are there, may be silent before it is started again."""
_IDLE_S = 5.0
_RETRY_S = 1.0


class PoolKeeper(PodObserver):
    """Tells the backend which pods are wanted, and the database what became of them."""

    def __init__(self, transactions: Transactions, keeper: LeaseKeeper, changes: ChangeFeed, clock: Clock) -> None:
        self._transactions = transactions
        self._keeper = keeper
        self._changes = changes
        self._clock = clock
        self._backend: PoolBackend | None = None
        self._deaths: dict[str, tuple[int, int]] = {}  # pod: deaths in a row, the job's env_steps at the last one
        self._lost_since: dict[str, float] = {}
        self._stopping = False

    async def adopt(self, backend: PoolBackend) -> None:
        """Take a backend; the pods that a former process of ours had made died with it."""
        self._backend = backend
        former = await self._transactions.read(
            lambda session: [pod.name for pod in pods.of_backend(session, backend.name)]
        )
        for name in former if backend.dies_with_us else ():
            await self._keeper.lose_pod(name, None, "it ended with the orchestrator before this one")
            await self._transactions.write(functools.partial(pods.set_state, name=name, state=PodState.STOPPED))

    async def run(self) -> None:
        """Reconcile whenever something has changed, for ever."""
        while True:
            version = self._changes.version(POOL)
            try:
                await self.reconcile()
                await self._changes.wait(POOL, version, _IDLE_S)
            except PodracerError as error:
                logger.error("the pool could not be brought up to date, it goes on: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def reconcile(self) -> None:
        """Have the pods that the jobs want, and no others."""
        assert self._backend is not None, "adopt comes first"
        if self._stopping or self._backend.capacity is None:
            return
        plans, frozen = await self._transactions.write(self._plan)
        await self._backend.reconcile(plans)
        for name in frozen:
            logger.warning("pod %s has not come back for %.0f s: its learner is started again", name, FROZEN_S)
            self._backend.restart(name)

    async def stop(self) -> None:
        """Stop every pod."""
        self._stopping = True
        assert self._backend is not None, "adopt comes first"
        await self._backend.stop()

    async def process_died(self, pod: str, role: str, why: str, log_tail: str) -> bool:
        """A dead learner's lease is free at once; a pod that keeps dying fails its job with the end of its log."""
        logger.warning("pod %s: %s", pod, why)
        restart = await self._transactions.write(lambda session: self._note_death(session, pod, why, log_tail))
        if role == LEARNER:
            problem = cohort_pb2.Problem(reason="LEARNER_DIED", message=f"{pod}: {why}", detail=log_tail)
            await self._keeper.lose_pod(pod, problem, why)
        return restart and not self._stopping

    async def pod_stopped(self, pod: str) -> None:
        self._deaths.pop(pod, None)
        self._lost_since.pop(pod, None)
        await self._keeper.lose_pod(pod, None, "it was stopped")
        await self._transactions.write(lambda session: pods.set_state(session, pod, PodState.STOPPED))
        self._changes.notify([POOL])

    def demands(self, session: Session) -> Sequence[Demand]:
        """What the live jobs want, oldest first. One pod is enough to inspect an environment."""
        found = []
        for job in jobs.in_states(session, ACTIVE_STATES):
            plan = plan_of(job)
            is_inspecting = job.state == JobState.VALIDATING
            least, most = (1, 1) if is_inspecting else (plan.min_pods, plan.max_pods)
            found.append(Demand(job.uid, plan.weight, least, most, plan.cpu))
        return found

    def capacity(self, session: Session, project: str) -> service_pb2.GetCapacityResponse:
        """What the pool has and uses."""
        assert self._backend is not None, "adopt comes first"
        present = pods.of_project(session, project, "", 10_000)
        response = service_pb2.GetCapacityResponse(
            backend=self._backend.name, pod_count=len(present), free_pod_count=-1
        )
        demands = self.demands(session)
        for demand in demands:
            job = jobs.get_by_uid(session, demand.job_uid)
            share = response.shares.add(job=job_name(job.project, job.job_id), weight=demand.weight)
            share.pod_count = len(pods.of_job(session, job.uid))
            share.used.CopyFrom(seconds_to_duration(job.cost_s))
            response.reserved.cpu += demand.cpu * share.pod_count
        what = self._backend.capacity
        if what is not None:
            response.total.CopyFrom(job_pb2.Resources(cpu=what.cores, memory_bytes=what.memory_bytes))
            cpu = max((demand.cpu for demand in demands), default=1.0)
            free = min(what.max_pods - len(present), int((what.cores - response.reserved.cpu) / cpu))
            response.free_pod_count = max(0, free)
        return response

    def _plan(self, session: Session) -> tuple[Sequence[PodPlan], Sequence[str]]:
        """The pods that are wanted, and those of them that seem to be frozen."""
        assert self._backend is not None and self._backend.capacity is not None, "asked only of a backend that knows"
        capacity, now = self._backend.capacity, self._clock.now()
        counts = share_pods(self.demands(session), capacity.cores, capacity.max_pods)
        threads = _threads(session, counts, capacity.cores)
        plans, frozen = {}, []
        for job_uid, count in counts.items():
            job = jobs.get_by_uid(session, job_uid)
            plan = plan_of(job)
            for index in range(count):
                name = pod_name(job.project, f"{job.job_id}-{index}")
                plans[name] = PodPlan(name, job_uid, plan.is_fused, plan.workers, threads)
                row = session.get(PodRow, name)
                if row is None or row.state == PodState.STOPPED:
                    layout = "FUSED" if plan.is_fused else "SPLIT"
                    pods.make(session, job, name, self._backend.name, layout, now)
                elif self._is_frozen(row):
                    frozen.append(name)
        for pod in pods.of_backend(session, self._backend.name):
            if pod.name not in plans:
                pods.set_state(session, pod.name, PodState.DRAINING)
        return list(plans.values()), frozen

    def _is_frozen(self, pod: PodRow) -> bool:
        """A lost pod asks for work again when it is alive; one that does not for long is started again."""
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
        job = session.get(JobRow, row.job_uid) if row is not None and row.job_uid is not None else None
        if row is None or row.state in _UNWANTED or job is None or JobState(job.state) not in ACTIVE_STATES:
            return False
        pods.note_restart(session, pod, why, now)
        deaths, steps = self._deaths.get(pod, (0, -1))
        deaths = deaths + 1 if steps == job.env_steps else 1
        self._deaths[pod] = (deaths, job.env_steps)
        if deaths < MAX_DEATHS:
            return True
        message = f"{pod} died {deaths} times in a row without progress; the last time {why}"
        problem = cohort_pb2.Problem(reason="POD_KEEPS_DYING", message=message, detail=log_tail)
        jobs.fail(session, job, problem, now)
        return False


def _threads(session: Session, counts: Mapping[str, int], cores: float) -> int:
    """Threads of each process, so that all together do not outnumber the cores (FACTS: they then collapse)."""
    processes = 0
    for job_uid, count in counts.items():
        plan = plan_of(jobs.get_by_uid(session, job_uid))
        processes += count * (1 if plan.is_fused else plan.workers + 1)
    return max(1, int(cores) // max(1, processes))
