"""How much memory the pool's pods may take: it follows what is free, without swinging to and fro. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from podracer_orchestrator.jobs.pod_kind import PodKind

LOW_FRACTION, LOW_BYTES = 0.05, 1 << 30
"""Memory is short where less is available than this part of the machine's, or than this much if that is less."""
RESERVE_FRACTION, RESERVE_BYTES = 0.10, 2 << 30
"""Growing leaves so much available, likewise: twice what counts as short."""
SETTLE_S = 5.0
"""How long after a pod was given up before another one is: what it held has to come back first."""
PAUSE_S = 60.0
"""How long after a pod was given up before another one is started."""


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The machine's memory now, in bytes: all, available, and what of it our pods take.

    `promised` is what the pods that are there need when they work, `newest` what the one does that would go first.
    """

    total: int
    available: int
    pods: int
    promised: int
    newest: int


class MemoryBudget:
    """Gives up one pod at a time while memory is short, and waits before it grows again."""

    def __init__(self) -> None:
        self._given_up_at = -math.inf

    def update(self, view: MemoryView, now_s: float) -> float:
        """Bytes that all pods together may need."""
        since_s = now_s - self._given_up_at
        if view.available < min(LOW_BYTES, LOW_FRACTION * view.total) and since_s >= SETTLE_S:
            self._given_up_at = now_s
            return view.promised - view.newest
        if since_s < PAUSE_S:
            return view.promised
        reserve = min(RESERVE_BYTES, RESERVE_FRACTION * view.total)
        # What runs stays as long as nothing is short, also where it turns out to need more than was thought.
        return max(view.promised, view.available + view.pods - reserve)


class MemoryNeeds:
    """What a pod of each kind needs: the most that one was seen to take while it worked."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def note(self, kind: str, size_bytes: int) -> None:
        """A pod of that kind, which works, takes so much."""
        self._seen[kind] = max(size_bytes, self._seen.get(kind, 0))

    def of(self, kind: PodKind, asked_bytes: int = 0) -> int:
        """Measured, and at least what its job says; a guess where neither is known."""
        return max(self._seen.get(kind.name, 0), asked_bytes) or kind.memory_bytes

    def total(self, kinds: Iterable[PodKind]) -> int:
        return sum(self.of(kind) for kind in kinds)
