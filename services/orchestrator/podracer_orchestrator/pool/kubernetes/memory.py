"""The memory of the pool between two looks at the cluster: the ends it has reported, and how long
it waits before it repeats something. Also the room in the cluster as of one look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from podracer_orchestrator.pool.backend import PodObserver, Trouble
from podracer_orchestrator.pool.kubernetes import status, troubles
from podracer_orchestrator.pool.kubernetes.template import LEARNER
from podracer_orchestrator.pool.scheduling import Growth
from podracer_platform.kubernetes.api import Item
from podracer_platform.rpc.backoff import Backoff

MARGIN_S = 30.0
"""How long a pod may run beyond its grace period before its node counts as dead: only the kubelet
confirms that a pod has ended, so one on a node without power is Terminating until the node is back,
deleted or tainted as out of service."""
_NO_ROOM = ("", "POD_UNSCHEDULABLE", "POD_QUOTA", "POD_FORBIDDEN", "POD_REFUSED")
FIRST_S, LONGEST_S = 1.0, 60.0
STEADY_S = 120.0
"""After this running time the earlier failures of a pod no longer count."""


class Deaths:
    """Learners and sidecars that have ended, reported once each, and pods whose nodes do not report
    any more.

    Ends before the first look are not reported, except those of the newest pod of a Job: for the
    others another pod runs since."""

    def __init__(self, observer: PodObserver) -> None:
        self._observer = observer
        self._told: set[str] = set()  # pods of the cluster, by uid
        self._restarts: dict[tuple[str, str], int] = {}  # of sidecars: pod, container
        self._running_since: dict[str, float] = {}
        self._ending_since: dict[str, float] = {}
        self._has_looked = False

    def running_s(self, pod: Item, now: float) -> float:
        """How long a pod's learner has been running, as seen by this process."""
        return now - self._running_since.get(status.uid_of(pod), now)

    def is_stranded(self, pods: Sequence[Item], now: float) -> bool:
        """Whether one of the pods has run beyond its grace period, by this process's clock: clocks
        differ."""
        return any(
            now - since >= float(pod["metadata"].get("deletionGracePeriodSeconds") or 0) + MARGIN_S
            for pod in pods
            if (since := self._ending_since.get(status.uid_of(pod))) is not None
        )

    async def look(
        self, jobs: Mapping[str, Item], pods: Mapping[str, Sequence[Item]], now: float
    ) -> None:
        """Report what is new since the previous look."""
        present = {status.uid_of(pod) for each in pods.values() for pod in each}
        unconfirmed = [
            pod
            for each in pods.values()
            for pod in each
            if status.phase(pod) not in ("Failed", "Succeeded")
        ]
        ending = [status.uid_of(pod) for pod in unconfirmed if status.is_deleting(pod)]
        self._ending_since = {uid: self._ending_since.get(uid, now) for uid in ending}
        self._told &= present
        self._restarts = {key: count for key, count in self._restarts.items() if key[0] in present}
        self._running_since = {
            uid: since for uid, since in self._running_since.items() if uid in present
        }
        for name, job in jobs.items():
            pod = status.newest(pods.get(name, ()))
            if pod is None or not status.pod_name(job):
                continue
            learner = status.learner_of(pod)
            if learner is not None and learner.is_running:
                self._running_since.setdefault(status.uid_of(pod), now)
            await self._look_at_sidecars(status.pod_name(job), pod)
            if status.phase(pod) == "Failed" and status.uid_of(pod) not in self._told:
                self._told.add(status.uid_of(pod))
                await self._tell_end(status.pod_name(job), pod)
        self._has_looked = True

    async def _look_at_sidecars(self, name: str, pod: Item) -> None:
        for each in status.containers(pod):
            key = status.uid_of(pod), each.name
            before = self._restarts.get(key, 0 if self._has_looked else each.restarts)
            self._restarts[key] = each.restarts
            if each.restarts > before:
                await self._observer.process_died(
                    name, each.name, troubles.describe_end(each), each.said
                )

    async def _tell_end(self, name: str, pod: Item) -> None:
        ended = status.learner_of(pod)
        if status.is_disrupted(pod):
            why = (
                status.condition(pod, "DisruptionTarget").get("message")
                or "the cluster has ended it"
            )
            await self._observer.pod_lost(name, f"its pod was taken away: {why}")
        elif ended is not None and ended.ended:
            await self._observer.process_died(
                name, LEARNER, troubles.describe_end(ended), ended.said
            )
        else:
            said = (
                (pod.get("status") or {}).get("message")
                or (pod.get("status") or {}).get("reason")
                or "no reason given"
            )
            await self._observer.pod_lost(name, f"its pod has failed: {said}")


def growth_of(
    jobs: Mapping[str, Item],
    pods: Mapping[str, Sequence[Item]],
    found: Mapping[str, Trouble],
    max_pending: int,
) -> Growth:
    """The placed pods, and the reason why others wait. `found`: the troubles of pods by id,
    including those without Jobs."""
    kinds = [
        status.kind_name(job)
        for name, job in jobs.items()
        if (pod := status.newest(pods.get(name, ()))) is not None and status.is_placed(pod)
    ]
    waiting = {
        name.rpartition("-")[0]: each.message
        for name, each in found.items()
        if each.kind in _NO_ROOM
    }
    return Growth(Counter(kinds), max_pending, waiting)


class Waits:
    """The waiting times before something is repeated, by name: longer each time; in seconds of the
    caller's clock."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[Backoff, float]] = {}

    def is_over(self, name: str, now: float) -> bool:
        return name not in self._waits or now >= self._waits[name][1]

    def prolong(self, name: str, now: float) -> None:
        """Wait longer: it has failed once more."""
        backoff, until = self._waits.get(name, (Backoff(FIRST_S, LONGEST_S, jitter=0.5), now))
        if now - until > STEADY_S:
            backoff.reset()
        self._waits[name] = backoff, now + next(backoff)

    def forget_others(self, names: Container[str]) -> None:
        self._waits = {name: each for name, each in self._waits.items() if name in names}
