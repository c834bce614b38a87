"""GetCapacity: the resources of the pool, their reserved and used parts, and each job's share; and
which pods stay, start and stop for the wanted number of each kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from podracer.common.v1 import cohort_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_orchestrator.jobs import JobPlan, PodKind, jobs
from podracer_orchestrator.leases import leases
from podracer_orchestrator.pool import pods
from podracer_orchestrator.pool.backend import Capacity
from podracer_orchestrator.pool.scheduling import Demand, Room, share_pods
from podracer_orchestrator.pool.shares import PoolShares
from podracer_orchestrator.tables import LeaseRow, PodRow, PodState, WorkKind
from podracer_platform.messages import seconds_to_duration
from podracer_platform.rpc import DEFAULT_PROJECT, job_name, last_part, pod_name

_STATIC_LIMIT = "pods: this server starts none; start more pods yourself"


def capacity_message(
    session: Session, shares: PoolShares, project: str, visible: Collection[str] | None = None
) -> service_pb2.GetCapacityResponse:
    """The message for clients. If the pods are started elsewhere, the machine is unknown and the
    pods are those of one project.

    visible   projects whose jobs the caller may see; None: all
    """
    backend, capacity, demands = shares.backend_name, shares.capacity, shares.demands(session)
    if capacity is None:
        there = pods.of_project(session, project, "", 10_000)
        demands = [
            each for each in demands if jobs.get_by_uid(session, each.job_uid).project == project
        ]
        response = service_pb2.GetCapacityResponse(
            backend=backend,
            pod_count=len(there),
            free_pod_count=-1,
            limit=_STATIC_LIMIT if backend == pods.STATIC else "",
        )
        split = share_pods(
            demands, Room(max_pods=sum(pod.state not in pods.ABSENT for pod in there))
        )
        _add_shares(session, response, demands, split.counts)
        return response
    there = pods.of_backend(session, backend)
    split = share_pods(demands, shares.room)
    response = service_pb2.GetCapacityResponse(
        backend=backend,
        pod_count=len(there),
        reserved=_reserved(shares, demands, there),
        limit=split.limit,
    )
    if capacity.growth is None:
        total = job_pb2.Resources(
            cpu=capacity.cores, memory_bytes=capacity.memory_bytes, gpu=capacity.gpus
        )
        response.total.CopyFrom(total)
        response.used.CopyFrom(_used(capacity, there))
    response.free_pod_count = _free_pods(shares, demands, response.reserved, len(there))
    if visible is not None:
        demands = [
            each for each in demands if jobs.get_by_uid(session, each.job_uid).project in visible
        ]
    _add_shares(session, response, demands, split.counts)
    return response


def pod_uses(shares: PoolShares) -> Mapping[str, job_pb2.Resources]:
    """The use of each pod's processes, as last measured."""
    measured = shares.capacity.pods if shares.capacity is not None else {}
    return {
        name: job_pb2.Resources(
            cpu=round(use.cores, 3), memory_bytes=use.memory_bytes, gpu=use.gpus
        )
        for name, use in measured.items()
    }


def _add_shares(
    session: Session,
    response: service_pb2.GetCapacityResponse,
    demands: Sequence[Demand],
    counts: Mapping[str, int],
) -> None:
    for demand in sorted(
        demands, key=lambda demand: jobs.get_by_uid(session, demand.job_uid).create_time
    ):
        job = jobs.get_by_uid(session, demand.job_uid)
        response.shares.add(
            job=job_name(job.project, job.job_id),
            weight=demand.weight,
            pod_count=len({lease.pod for lease in leases.held(session, job_uid=job.uid)}),
            used=seconds_to_duration(job.cost_s),
            wanted_count=counts[job.uid],
            min_count=demand.min_pods,
            max_count=demand.max_pods,
        )


def _reserved(
    shares: PoolShares, demands: Sequence[Demand], there: Sequence[PodRow]
) -> job_pb2.Resources:
    """The reservations of the existing pods: for each the largest request of a job of its kind."""
    reserved = job_pb2.Resources()
    for pod in there:
        kind = PodKind.parse(pod.kind)
        of_kind = [demand for demand in demands if demand.kind == kind]
        reserved.cpu += max((demand.cpu for demand in of_kind), default=float(kind.threads or 1))
        reserved.memory_bytes += max(
            (each.memory_bytes for each in of_kind), default=shares.memory_need(kind)
        )
        reserved.gpu += kind.gpus
    return reserved


def _used(capacity: Capacity, there: Sequence[PodRow]) -> job_pb2.Resources:
    """The use of all processes of the machine."""
    foreign = capacity.gpus - capacity.usable_gpus
    ours = sum(PodKind.parse(pod.kind).gpus for pod in there if pod.state != PodState.STOPPED)
    return job_pb2.Resources(
        cpu=round(capacity.used_cores, 3),
        memory_bytes=capacity.memory_bytes - capacity.available_bytes,
        gpu=foreign + ours,
    )


def _free_pods(
    shares: PoolShares, demands: Sequence[Demand], reserved: job_pb2.Resources, count: int
) -> int:
    """The number of additional pods that fit, of the largest shape that jobs request; without a
    request, of the default shape."""
    kind, room = PodKind(), shares.room
    shapes = [(each.cpu, each.memory_bytes, each.kind.gpus) for each in demands]
    shapes = shapes or [(1.0, shares.memory_need(kind), 0)]
    cpu, memory_bytes, gpus = (max(shape[index] for shape in shapes) for index in range(3))
    free: list[float] = [room.max_pods - count, (room.cores - reserved.cpu) / cpu]
    free += [(room.memory_bytes - reserved.memory_bytes) / memory_bytes] if memory_bytes else []
    free += [(room.gpus - reserved.gpu) / gpus] if gpus else []
    return max(0, math.floor(min(free) + 1e-9))


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
