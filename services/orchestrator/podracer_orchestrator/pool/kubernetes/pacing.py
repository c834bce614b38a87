"""How far the pool may grow, and how long it waits before it does something again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from podracer_core.kubernetes.api import Item
from podracer_core.rpc.backoff import Backoff
from podracer_orchestrator.jobs.plan import PodKind
from podracer_orchestrator.pool.backend import Trouble
from podracer_orchestrator.pool.kubernetes import status
from podracer_orchestrator.pool.kubernetes.job import KIND_LABEL
from podracer_orchestrator.pool.scheduling import Growth

AGAIN_S = 60.0
"""How long after a pod found no room before more than one of its kind is tried at a time."""
_NO_ROOM = ("POD_UNSCHEDULABLE", "POD_QUOTA", "POD_FORBIDDEN", "POD_REFUSED")
FIRST_S, LONGEST_S = 1.0, 60.0
STEADY_S = 120.0
"""Who has been well for so long begins anew."""


class GrowthWatch:
    """Remembers for a while that there was no room, for pods with GPUs and for those without."""

    def __init__(self) -> None:
        self._placed: Mapping[str, int] = {}
        self._stalled: dict[bool, tuple[float, str]] = {}

    def now(self, now: float) -> Growth:
        stalled = {has_gpus: why for has_gpus, (until, why) in self._stalled.items() if now < until}
        return Growth(self._placed, stalled)

    def look(
        self, jobs: Mapping[str, Item], pods: Mapping[str, Sequence[Item]], found: Mapping[str, Trouble], now: float
    ) -> None:
        """`found`: what keeps pods from working, by id, also those whose Jobs were not made."""
        placed: Counter[str] = Counter()
        for name, job in jobs.items():
            pod = status.newest(pods.get(name, ()))
            if pod is not None and status.is_placed(pod):
                placed[str((job["metadata"].get("labels") or {}).get(KIND_LABEL, ""))] += 1
        self._placed = placed
        for name, trouble in found.items():
            if trouble.kind in _NO_ROOM:
                kind = PodKind.parse(name.rpartition("-")[0])
                self._stalled[bool(kind.gpus)] = now + AGAIN_S, trouble.message


class Waits:
    """How long to wait before something is done again, by name: longer each time; in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[Backoff, float]] = {}

    def is_over(self, name: str, now: float) -> bool:
        return name not in self._waits or now >= self._waits[name][1]

    def prolong(self, name: str, now: float) -> None:
        """It has failed once more."""
        backoff, until = self._waits.get(name, (Backoff(FIRST_S, LONGEST_S, jitter=0.5), now))
        if now - until > STEADY_S:
            backoff.reset()
        self._waits[name] = backoff, now + next(backoff)

    def forget_others(self, names: Container[str]) -> None:
        self._waits = {name: each for name, each in self._waits.items() if name in names}
