"""Chooses the pods that stay, start and stop, for the wanted number of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from podracer.common.v1 import cohort_pb2
from podracer_orchestrator.jobs.plan import JobPlan, PodKind
from podracer_orchestrator.pool.backend import Capacity
from podracer_orchestrator.pool.scheduling import Demand, Room, share_pods
from podracer_orchestrator.tables import LeaseRow, PodRow, PodState, WorkKind
from podracer_platform.rpc.resource_names import DEFAULT_PROJECT, last_part, pod_name


@dataclass(frozen=True, slots=True)
class PodChoice:
    """New pods by name, the pods that stay, and surplus pods, newest first."""

    new: Mapping[str, PodKind]
    kept: Sequence[PodRow]
    surplus: Sequence[PodRow]


def choose_pods(
    wanted: Mapping[PodKind, int], there: Sequence[PodRow], held: Collection[LeaseRow]
) -> PodChoice:
    """`there`: the existing pods, oldest first; draining ones do not count.

    Pods stay in this order: those with a lease of their own, followers, those without a lease,
    those that have yet to start; of these the older first. A new pod takes the lowest number that
    no pod of its kind has."""
    leading = {lease.pod for lease in held if lease.kind != WorkKind.FOLLOW}
    busy = {lease.pod for lease in held}
    taken = {last_part(pod.name) for pod in there}
    present = [pod for pod in there if pod.state != PodState.DRAINING]
    kept: list[PodRow] = []
    new: dict[str, PodKind] = {}
    for kind, count in wanted.items():
        of_kind = sorted(
            (pod for pod in present if pod.kind == kind.name),
            key=lambda pod: (
                pod.name not in busy,
                pod.name not in leading,
                pod.state == PodState.STARTING,
            ),
        )
        kept += of_kind[:count]
        free = (
            name for number in itertools.count() if (name := f"{kind.name}-{number}") not in taken
        )
        for name in itertools.islice(free, max(0, count - len(of_kind))):
            new[pod_name(DEFAULT_PROJECT, name)] = kind
    surplus = [pod for pod in reversed(present) if pod not in kept]
    return PodChoice(new, kept, surplus)


def impossibility(plan: JobPlan, capacity: Capacity) -> cohort_pb2.Problem | None:
    """The reason why a job can never run here: too few GPUs for a pod, or no room for all learners
    of an agent at once. Of a cluster only the number of pods is known."""
    is_cluster = capacity.growth is not None
    if plan.kind.gpus > capacity.gpus and not is_cluster:
        message = (
            f"pod.resources.gpu: a pod needs {plan.kind.gpus} GPUs, this machine has "
            f"{capacity.gpus}"
        )
        return cohort_pb2.Problem(reason="NO_GPU", message=message)
    team = Demand("", 1.0, 1, plan.learners, plan.cpu, plan.memory_bytes, plan.kind)
    machine = Room(capacity.cores, capacity.memory_bytes, capacity.gpus, capacity.max_pods)
    shares = share_pods([team], Room(max_pods=capacity.max_pods) if is_cluster else machine)
    most = shares.counts[team.job_uid]
    if most >= plan.learners:
        return None
    where = "the pool" if is_cluster else "this machine"
    message = (
        f"pod.learners: {plan.learners} learners of an agent need as many pods at once, and "
        f"{where} has room for {most} ({shares.limit}): expected at most {most}, or less for each "
        "in pod.resources"
    )
    return cohort_pb2.Problem(reason="POOL_TOO_SMALL", message=message)
