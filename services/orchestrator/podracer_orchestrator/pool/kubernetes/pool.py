"""The backend: creates, adopts and deletes Jobs until the cluster holds the wanted pods."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeVar

from podracer_core.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool.backend import Capacity, PodObserver, PodPlan, PoolBackend, Trouble
from podracer_orchestrator.pool.kubernetes import status
from podracer_orchestrator.pool.kubernetes.cluster import ClusterCopy
from podracer_orchestrator.pool.kubernetes.job import (
    ASKED_MEMORY,
    POOL_LABEL,
    TEMPLATE_DIGEST,
    JobMaker,
    pool_selector,
)
from podracer_orchestrator.pool.kubernetes.status import ClusterWarnings, Deaths, Waits, growth_of
from podracer_orchestrator.pool.kubernetes.template import (
    INVALID_TEMPLATE,
    Profiles,
    digest,
    place,
    read_template,
)
from podracer_platform.kubernetes import CALLS, ClusterApi, Item, in_cluster, read_kubeconfig
from podracer_platform.rpc import Backoff, last_part

logger = logging.getLogger(__name__)

DRAIN_S = 60.0
"""How long a surplus pod has to end by itself, before its Job is deleted."""
FRESH_S = 60.0
"""A learner that has run for less than this does not count as frozen: it may be loading."""
_LOOK_S = 5.0
"""How often the pool looks at everything without any change."""
_PAUSE_S = 0.2
"""The minimum time between two looks: changes come in bursts."""
_REST = 9.0
"""The pause after a look, as a multiple of its processor time: with many pods looks become
rarer."""
_SEEN_S = 15.0
"""The time in which the copy of the cluster must show a change made here; after that the change is
repeated."""

Result = TypeVar("Result")


class KubernetesPool(PoolBackend):
    """One Job per pod, named by the pod's id. Jobs continue without this process, and the next one
    adopts them."""

    name = "kubernetes"

    def __init__(
        self, config: OrchestratorConfig, observer: PodObserver, profiles: Profiles
    ) -> None:
        """Raises InvalidInput without access to a cluster."""
        self._config = config
        self._observer = observer
        self._profiles = profiles
        access = in_cluster() if config.kubeconfig is None else read_kubeconfig(config.kubeconfig)
        self._api = ClusterApi(access)
        self._maker = JobMaker(config.pool_name, config.kueue_queue, config.gpu_resource)
        self._max_pending = config.max_pods if config.kueue_queue else config.pool_max_pending
        self._calls = ThreadPoolExecutor(CALLS, "cluster-call")
        self._changed = asyncio.Event()
        self._cluster = ClusterCopy(
            self._api, pool_selector(config.pool_name), config.pod_template, self._changed.set
        )
        self._deaths = Deaths(observer)
        self._warnings = ClusterWarnings()
        self._task: asyncio.Task[None] | None = None
        self._plans: Mapping[str, PodPlan] | None = None  # by id; None before the first are known
        # id and name of each pod that was there, or should have been
        self._known: dict[str, str] = {}
        self._drain_since: dict[str, float] = {}
        self._made: dict[str, float] = {}  # id: until when the copy may not know its Job yet
        self._deleted: dict[str, float] = {}  # uid of a Job: likewise
        self._waits = Waits()  # before a refused Job, or one whose pod has ended, is created again
        self._refusals: dict[str, PodracerError] = {}  # id: why its Job was not made
        self._digests: dict[PodKind, str] = {}  # of templates, as of one look
        self._told: Mapping[str, Trouble] = {}  # by id
        self._restarts: set[asyncio.Task[None]] = set()
        # replaced as a whole: transactions read it from their threads
        self._capacity: Capacity | None = None

    @property
    def capacity(self) -> Capacity | None:
        return self._capacity

    async def start(self, former: Sequence[str]) -> None:
        self._known = {last_part(name): name for name in former}
        self._cluster.start()
        self._task = asyncio.create_task(self._run(), name="kubernetes-pool")

    async def check(self) -> None:
        """Raises PermissionRefused while the cluster refuses calls: the Role lacks a permission, or
        the token is unknown."""
        for problem in (self._cluster.problem, *self._refusals.values()):
            if isinstance(problem, PermissionRefused):
                raise problem

    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        self._plans = {last_part(plan.name): plan for plan in wanted}
        self._known |= {last_part(plan.name): plan.name for plan in wanted}
        self._changed.set()

    def restart(self, pod: str) -> None:
        """Delete the pod's Job and create it again, if its learner has run for a while; otherwise
        it is only slow to start."""
        job = self._cluster.jobs.get(last_part(pod))
        pods = self._cluster.pods().get(last_part(pod), ())
        newest = status.newest(pods)
        if (
            job is None
            or newest is None
            or self._deaths.running_s(newest, time.monotonic()) < FRESH_S
        ):
            return
        task = asyncio.get_running_loop().create_task(self._delete_or_log(job))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def stop(self) -> None:
        """Leave the pods as they are: they wait for the next orchestrator."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._cluster.stop()
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._api.close()

    async def _run(self) -> None:
        waits = Backoff(0.5, 30.0, jitter=0.5)
        while True:
            self._changed.clear()
            used_before_s = time.thread_time()
            try:
                if self._cluster.is_complete:
                    await self._look()
                waits.reset()
                rest_s = _REST * (time.thread_time() - used_before_s)
                pause_s, longest_s = min(max(_PAUSE_S, rest_s), _LOOK_S), _LOOK_S
            except PodracerError as error:
                logger.warning("cannot reconcile the cluster, retrying: %s", error)
                pause_s = longest_s = next(waits)
            except Exception:
                logger.exception("unexpected error while reconciling the cluster; retrying")
                pause_s = longest_s = next(waits)
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(longest_s - pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        """Look at everything, then bring the cluster to the wanted state. Each step can be repeated
        safely."""
        await self._observer.check_active()
        jobs, pods, now = dict(self._cluster.jobs), self._cluster.pods(), time.monotonic()
        found = await self._tell_troubles(jobs, pods)
        # they may end jobs, which get no further events then
        await self._deaths.look(jobs, pods, now)
        self._digests = {}
        self._capacity = Capacity(  # of a cluster nothing is known but how far to go
            cores=0.0,
            memory_bytes=0,
            max_pods=self._config.max_pods,
            growth=growth_of(jobs, pods, found, self._max_pending),
            asked_bytes={status.pod_name(job): _asked_memory(job) for job in jobs.values()},
        )
        plans = self._plans
        if plans is None:
            return
        failures = await asyncio.gather(
            self._delete_surplus(jobs, pods, plans),
            self._make_missing(jobs, plans),
            return_exceptions=True,
        )
        await self._tell_stopped(plans)
        for failure in failures:
            if failure is not None:
                raise failure

    async def _delete_surplus(
        self,
        jobs: Mapping[str, Item],
        pods: Mapping[str, Sequence[Item]],
        plans: Mapping[str, PodPlan],
    ) -> None:
        """Give surplus pods time to end, then delete their Jobs; delete Jobs that have ended at
        once."""
        now, ending = time.monotonic(), []
        self._drain_since = {
            name: since for name, since in self._drain_since.items() if name in jobs
        }
        for name, job in jobs.items():
            outcome, newest = status.outcome(job), status.newest(pods.get(name, ()))
            if self._deleted.get(status.uid_of(job), 0.0) > now:
                continue
            if self._deaths.is_stranded(pods.get(name, ()), now):
                # It may still run there, so a pod of another name replaces it, before its own name
                # is free.
                if name in plans:
                    await self._observer.pod_stranded(
                        plans[name].name, "its node does not confirm that it has ended"
                    )
                else:
                    ending.append(self._delete(job, "Background"))  # which waits for nothing
                continue
            if status.is_deleting(job):
                continue
            if name in plans:
                self._drain_since.pop(name, None)
                if outcome:
                    why = "its learner has ended" if outcome == "Complete" else _failure(job)
                    await self._observer.pod_lost(plans[name].name, why)
                    self._waits.prolong(name, now)
                    ending.append(self._delete(job, "Background"))
                elif self._waits_in_vain(job, newest):
                    logger.info(
                        "pod %s has not started, and its template has changed", plans[name].name
                    )
                    ending.append(self._delete(job, "Background"))
                continue
            since = self._drain_since.setdefault(name, now)
            works = newest is not None and status.is_running(newest)
            if outcome or not works or now - since >= DRAIN_S or name not in self._known:
                # a pod without a row is not asked to end
                ending.append(self._delete(job, "Foreground"))
        await _all(ending)

    def _waits_in_vain(self, job: Item, pod: Item | None) -> bool:
        """Whether a pod that has not started has an outdated template: that of an existing Job
        cannot be changed."""
        made_from = str((job["metadata"].get("annotations") or {}).get(TEMPLATE_DIGEST, ""))
        if not made_from or (pod is not None and status.phase(pod) != "Pending"):
            return False
        kind = PodKind.parse(status.kind_name(job))
        try:
            if kind not in self._digests:
                self._digests[kind] = digest(self._template(kind))
            return made_from != self._digests[kind]
        except InvalidInput:
            return False

    def _template(self, kind: PodKind) -> dict[str, Any]:
        """The current template for pods of a kind. Raises InvalidInput with the place of the
        error."""
        template = read_template(self._config.pod_template, self._cluster.template)
        return place(template, self._profiles.entries, kind.profile)

    async def _make_missing(self, jobs: Mapping[str, Item], plans: Mapping[str, PodPlan]) -> None:
        now = time.monotonic()
        self._made = {
            name: until for name, until in self._made.items() if until > now and name not in jobs
        }
        self._refusals = {
            name: error
            for name, error in self._refusals.items()
            if name in plans and name not in jobs
        }
        self._waits.forget_others(plans)
        missing = [
            plan
            for name, plan in plans.items()
            if name not in jobs and name not in self._made and self._waits.is_over(name, now)
        ]
        if not missing:
            return
        try:
            owner = await self._owner()
        except (PermissionRefused, PreconditionFailed) as error:
            for plan in missing:
                self._refuse(last_part(plan.name), error)
        else:
            await _all([self._make(plan, owner) for plan in missing])

    async def _make(self, plan: PodPlan, owner: Item) -> None:
        name = last_part(plan.name)
        try:
            body = self._maker.make(plan, self._template(plan.kind), owner)
            await self._in_thread(partial(self._api.create, "jobs", body))
        except AlreadyExists:
            if not await self._is_ours(name):
                return
        except Unavailable:
            raise
        except PodracerError as error:
            self._refuse(name, error)
            if error.reason != INVALID_TEMPLATE:  # which is right again at once when it is
                self._waits.prolong(name, time.monotonic())
            return
        else:
            logger.info("pod %s: created its Job %s", plan.name, name)
        self._refusals.pop(name, None)
        self._made[name] = time.monotonic() + _SEEN_S

    async def _is_ours(self, name: str) -> bool:
        """Whether an existing Job belongs to this pool, created by a call whose answer was lost."""
        try:
            job = await self._in_thread(partial(self._api.get, "jobs", name))
        except NotFound:
            return False
        pool = (job["metadata"].get("labels") or {}).get(POOL_LABEL)
        if pool == self._config.pool_name:
            return True
        whose = f"the pool {pool}" if pool else "no pool"
        message = (
            f"the namespace {self._api.namespace} already has a Job {name}, which belongs "
            f"to {whose}"
        )
        self._refuse(name, AlreadyExists(message))
        self._waits.prolong(name, time.monotonic())
        return False

    def _refuse(self, name: str, error: PodracerError) -> None:
        if error.message not in {each.message for each in self._refusals.values()}:
            logger.error("cannot create the Job %s: %s", name, error.message)
        self._refusals[name] = error

    async def _owner(self) -> Item:
        """The ConfigMap that owns all Jobs. It is never created here: deleting it ends all Jobs."""
        name = f"{self._config.pool_name}-pool"
        try:
            owner = await self._in_thread(partial(self._api.get, "configmaps", name))
        except NotFound:
            owner = {}
        if not owner or status.is_deleting(owner):
            raise PreconditionFailed(
                f"cannot create pods: the ConfigMap {name} in the namespace {self._api.namespace} "
                "is missing or being deleted. It owns the Jobs of all pods; apply the manifests "
                "again",
                reason="NO_POD_OWNER",
            )
        return owner

    async def _delete(self, job: Item, propagation: Literal["Foreground", "Background"]) -> None:
        name, uid = status.name_of(job), status.uid_of(job)
        await self._in_thread(partial(self._api.delete_job, name, uid, propagation))
        now = time.monotonic()
        self._deleted = {uid: until for uid, until in self._deleted.items() if until > now} | {
            uid: now + _SEEN_S
        }
        logger.info("deleted the Job %s", name)

    async def _delete_or_log(self, job: Item) -> None:
        try:
            await self._delete(job, "Background")
        except PodracerError as error:
            logger.warning("cannot delete the Job %s: %s", status.name_of(job), error.message)

    async def _tell_stopped(self, plans: Mapping[str, PodPlan]) -> None:
        """Report the pods that are neither wanted nor present."""
        there = {*plans, *self._cluster.jobs, *self._made}
        await _all([self._tell_stop(name) for name in self._known if name not in there])

    async def _tell_stop(self, name: str) -> None:
        # first, as another pod may get the name before this is reported
        full_name = self._known.pop(name)
        try:
            await self._observer.pod_stopped(full_name)
        except PodracerError:
            self._known.setdefault(name, full_name)
            raise

    async def _tell_troubles(
        self, jobs: Mapping[str, Item], pods: Mapping[str, Sequence[Item]]
    ) -> Mapping[str, Trouble]:
        """Report the changes of the pods' troubles; returns all troubles by id."""
        seen = {name: status.of_job(job, pods.get(name, ())) for name, job in jobs.items()}
        seen |= {name: status.of_refusal(error) for name, error in self._refusals.items()}
        found = {name: trouble for name, trouble in seen.items() if trouble is not None}
        slow = {name: job for name, job in jobs.items() if name not in found}
        found |= await self._warnings.of(
            slow, pods, self._in_thread, self._api.warnings, time.monotonic()
        )
        found = {name: trouble for name, trouble in found.items() if name in self._known}
        changes: dict[str, Trouble | None] = dict.fromkeys(self._told.keys() - found.keys())
        changes |= {
            name: trouble for name, trouble in found.items() if self._told.get(name) != trouble
        }
        named = {
            self._known[name]: trouble for name, trouble in changes.items() if name in self._known
        }
        if named:
            await self._observer.pods_troubled(named)
        self._told = found
        return found

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)


async def _all(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all to their ends, then raise the first error."""
    for failure in await asyncio.gather(*calls, return_exceptions=True):
        if failure is not None:
            raise failure


def _asked_memory(job: Item) -> int:
    text = (job["metadata"].get("annotations") or {}).get(ASKED_MEMORY, "0")
    return int(text) if str(text).isdecimal() else 0


def _failure(job: Item) -> str:
    failed = status.condition(job, "Failed")
    return (
        f"its Job has failed: {failed.get('message') or failed.get('reason') or 'no reason given'}"
    )
