"""Who gets what: which job a free pod serves, and how many pods each job has. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that wants pods, in the order in which jobs were made. `cpu` is in cores for each pod."""

    job_uid: str
    weight: float
    min_pods: int
    max_pods: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Load:
    """How much a job has now."""

    job_uid: str
    weight: float
    held: int


def fairest_first(loads: Sequence[Load]) -> Sequence[str]:
    """The jobs in the order in which a free pod looks for work: least held for its weight first, then the oldest."""
    order = sorted(range(len(loads)), key=lambda index: (loads[index].held / loads[index].weight, index))
    return [loads[index].job_uid for index in order]


def share_pods(demands: Sequence[Demand], cores: float, max_pods: int) -> Mapping[str, int]:
    """How many pods each job has on one machine.

    First each job, oldest first, what it needs at least; then one after the other to the job that has least for its
    weight, up to what it wants at most. A machine too small for anything still runs one pod, or nothing would end.
    """
    counts = {demand.job_uid: 0 for demand in demands}
    free_cores, free_pods = cores, max_pods

    def add(demand: Demand) -> bool:
        nonlocal free_cores, free_pods
        is_first = not any(counts.values())
        if free_pods < 1 or (demand.cpu > free_cores + 1e-9 and not is_first):
            return False
        counts[demand.job_uid] += 1
        free_cores -= demand.cpu
        free_pods -= 1
        return True

    for demand in demands:
        while counts[demand.job_uid] < demand.min_pods and add(demand):
            pass
    open_demands = [demand for demand in demands if counts[demand.job_uid] < demand.max_pods]
    while open_demands:
        demand = min(open_demands, key=lambda each: counts[each.job_uid] / each.weight)
        if not add(demand) or counts[demand.job_uid] >= demand.max_pods:
            open_demands.remove(demand)
    return counts
