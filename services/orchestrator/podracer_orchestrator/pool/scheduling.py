"""Scheduling: which job a free pod serves, how many pods each job has, how much memory they take.
Numbers only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from podracer_orchestrator.jobs import PodKind

LOW_FRACTION, LOW_BYTES = 0.05, 1 << 30
"""Memory is short where less is available than this part of the machine's, or than this much if
that is less."""
RESERVE_FRACTION, RESERVE_BYTES = 0.10, 2 << 30
"""Pods are added while this much stays available, likewise: twice the limit of short memory."""
SETTLE_S = 5.0
"""How long after a pod was given up before another one is: what it held has to come back first."""
PAUSE_S = 60.0
"""How long after a pod was given up before another one is started."""
GIVE_WAY = 8
"""In a cluster, one of this many pods may wait for a place, even if others have all that the pool
may have."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that wants pods; `cpu` (cores) and `memory_bytes` are those of each pod."""

    job_uid: str
    weight: float
    min_pods: int
    max_pods: int
    cpu: float = 1.0
    memory_bytes: int = 0
    kind: PodKind = field(default_factory=PodKind)


@dataclass(frozen=True, slots=True)
class Growth:
    """The present knowledge of a cluster, whose room shows only when pods get places.

    placed        pods of each kind that have a place
    max_pending   pods that may wait for one, of all kinds together; 0: what has no place does not
                  count
    waiting       why pods of a kind wait, in words
    """

    placed: Mapping[str, int]
    max_pending: int
    waiting: Mapping[str, str] = field(default_factory=dict)

    def reach(self, demands: Sequence[Demand], max_pods: int) -> Mapping[PodKind, int]:
        """How many pods of each kind there may be: those that have a place, and its part of those
        that wait for one.

        Pods serve any job of their kind, so only kinds compete. By weight, but one pod at least: a
        kind that never finds a place keeps no other from it. What is left over goes last to the
        kind whose jobs are furthest ahead."""
        wanted: dict[PodKind, int] = {}
        weights: dict[PodKind, float] = {}
        for demand in demands:
            wanted[demand.kind] = wanted.get(demand.kind, 0) + demand.max_pods
            weights[demand.kind] = weights.get(demand.kind, 0.0) + demand.weight
        placed = {kind: min(count, self.placed.get(kind.name, 0)) for kind, count in wanted.items()}
        waiting = [
            Demand(kind.name, weights[kind], 1, count - placed[kind])
            for kind, count in wanted.items()
            if count > placed[kind]
        ]
        pending = min(self.max_pending, max(max_pods - sum(placed.values()), max_pods // GIVE_WAY))
        most = max(pending, len(waiting)) if self.max_pending else 0
        parts = share_pods(waiting, Room(max_pods=most)).counts
        return {kind: count + parts.get(kind.name, 0) for kind, count in placed.items()}


@dataclass(frozen=True, slots=True)
class Room:
    """Limits of all pods together."""

    cores: float = math.inf
    memory_bytes: float = math.inf
    gpus: float = math.inf
    max_pods: int = 1 << 30
    growth: Growth | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """Pods of each job, and in words what kept a job from getting more; empty where each has what
    it wants."""

    counts: Mapping[str, int]
    limit: str = ""


def share_pods(demands: Sequence[Demand], room: Room) -> Shares:
    """How many pods each job has.

    First each job, in the order given, what it needs at least; then one after the other to the job
    with the fewest pods for its weight, up to what it wants at most. A machine too small for
    anything still runs one pod, or nothing would end; but none without the GPUs that it asks for.
    """
    counts = {demand.job_uid: 0 for demand in demands}
    growth = room.growth
    reach = dict(growth.reach(demands, room.max_pods)) if growth is not None else {}
    left, limit = room, ""

    def add(demand: Demand) -> bool:
        nonlocal left, limit
        why = _shortage(demand, left, room, is_first=left is room)
        if growth is not None and reach[demand.kind] < 1:
            why = (
                why
                or f"pods: {growth.max_pending} at most wait for a place "
                "(PODRACER_POOL_MAX_PENDING)"
            )
        if why:
            limit = limit or why
            return False
        counts[demand.job_uid] += 1
        if growth is not None:
            reach[demand.kind] -= 1
        left = Room(
            left.cores - demand.cpu,
            left.memory_bytes - demand.memory_bytes,
            left.gpus - demand.kind.gpus,
            left.max_pods - 1,
        )
        return True

    for demand in demands:
        while counts[demand.job_uid] < demand.min_pods and add(demand):
            pass
    waiting = [
        (counts[demand.job_uid] / demand.weight, index)
        for index, demand in enumerate(demands)
        if counts[demand.job_uid] < demand.max_pods
    ]
    heapq.heapify(waiting)
    while waiting:
        demand = demands[waiting[0][1]]
        count = counts[demand.job_uid]
        if add(demand) and count + 1 < demand.max_pods:
            heapq.heapreplace(waiting, ((count + 1) / demand.weight, waiting[0][1]))
        else:
            heapq.heappop(waiting)
    if growth is not None:
        limit = next((why for kind in reach if (why := growth.waiting.get(kind.name))), limit)
    return Shares(counts, limit)


def _shortage(demand: Demand, left: Room, room: Room, *, is_first: bool) -> str:
    """The resource that is missing for one more pod, in words; empty if none is."""
    if left.max_pods < 1:
        return f"pods: {room.max_pods} at most (PODRACER_MAX_PODS)"
    if demand.kind.gpus > left.gpus:
        return f"GPUs: {left.gpus:g} of {room.gpus:g} free, a pod needs {demand.kind.gpus}"
    if is_first:
        return ""
    if demand.cpu > left.cores + 1e-9:
        return f"cores: {max(0.0, left.cores):g} of {room.cores:g} free, a pod needs {demand.cpu:g}"
    if demand.memory_bytes > left.memory_bytes:
        free = max(0.0, left.memory_bytes)
        return f"memory: {_gib(free)} free for pods, a pod needs {_gib(demand.memory_bytes)}"
    return ""


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


@dataclass(frozen=True, slots=True)
class Load:
    """A job's use (device seconds, those of its present leases included) and the number of leases
    that it holds."""

    job_uid: str
    weight: float
    used_s: float
    held: int
    kind: str = ""


@dataclass(slots=True)
class _Account:
    weight: float
    turn: float
    used_s: float  # at that turn

    def at(self, used_s: float) -> float:
        return self.turn + (used_s - self.used_s) / self.weight


class FairShare:
    """Stride scheduling: the next free pod works for the job that has used least for its weight
    since it joined.

    A job's turn grows by the device seconds that it uses, divided by its weight. A job that joins
    begins at the least turn of those that it competes with (C. A. Waldspurger and W. E. Weihl,
    "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT/LCS/TM-528,
    1995). Jobs do not save up turns: a job that cannot take an offered pod is put level with the
    job that takes it."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def turns(self, loads: Sequence[Load]) -> Mapping[str, float]:
        """The turn of each job. `loads` are all jobs that are active now: others are forgotten, new
        ones join."""
        held = {load.job_uid: load for load in loads}
        self._accounts = {uid: account for uid, account in self._accounts.items() if uid in held}
        turns = {uid: account.at(held[uid].used_s) for uid, account in self._accounts.items()}
        for load in loads:
            account = self._accounts.get(load.job_uid)
            if account is None:
                rivals = [
                    each for each in loads if each.job_uid in turns and each.kind == load.kind
                ]
                # Without rivals: level with the jobs that work, not with one that cannot get pods.
                rivals = rivals or [each for each in loads if each.job_uid in turns and each.held]
                turns[load.job_uid] = min((turns[each.job_uid] for each in rivals), default=0.0)
            elif account.weight == load.weight:
                continue
            self._accounts[load.job_uid] = _Account(load.weight, turns[load.job_uid], load.used_s)
        return turns

    def order(self, loads: Sequence[Load]) -> Sequence[str]:
        """The jobs in the order in which a free pod looks for work; of equals the one with fewer
        pods per weight."""
        turns = self.turns(loads)
        order = sorted(
            range(len(loads)),
            key=lambda index: (
                turns[loads[index].job_uid],
                loads[index].held / loads[index].weight,
                index,
            ),
        )
        return [loads[index].job_uid for index in order]

    def level(self, passed_over: Iterable[str], taker: str, loads: Collection[Load]) -> None:
        """`taker` has taken a pod that was offered to the jobs `passed_over` before; jobs that left
        are ignored."""
        used = {load.job_uid: load.used_s for load in loads}
        if taker not in self._accounts:
            return
        turn = self._accounts[taker].at(used[taker])
        for uid in self._accounts.keys() & set(passed_over):
            account = self._accounts[uid]
            account.turn, account.used_s = max(turn, account.at(used[uid])), used[uid]


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The machine's memory now, in bytes: all, available, and what of it our pods take.

    `promised` is what the pods that are there need when they work, `newest` what the one does that
    would go first."""

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
        # Running pods stay as long as there are enough resources, even if they need more than
        # estimated.
        return max(view.promised, view.available + view.pods - reserve)


class MemoryNeeds:
    """Memory that a pod of each kind needs: the most that one was seen to take while it worked."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def note(self, kind: str, size_bytes: int) -> None:
        """Note that a pod of that kind takes `size_bytes` while it works."""
        self._seen[kind] = max(size_bytes, self._seen.get(kind, 0))

    def of(self, kind: PodKind, asked_bytes: int = 0) -> int:
        """Measured bytes, at least those that the job asks for; a guess if neither is known."""
        return max(self._seen.get(kind.name, 0), asked_bytes) or kind.memory_bytes
