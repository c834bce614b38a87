"""What one round, one renewal and one second of a watcher cost a control plane, in CPU time and
statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from simulation.clock import SkippingClock
from simulation.control_plane import ControlPlane
from simulation.curves import Curves
from simulation.pod import Load, SimulatedPod, Site, never

from podracer.orchestrator.v1 import job_service_pb2, job_service_pb2_grpc, pod_service_pb2_grpc
from podracer_core.errors import PodracerError
from podracer_platform.rpc import open_aio_channel
from podracer_platform.storage import open_store

PODS = 8
ROUNDS, WARM_ROUNDS = 80, 24
RENEWALS = 50
"""Of each pod."""
WATCHERS, WATCHED_S, REPORTS = 50, 5.0, 20
"""Watchers of all jobs, and how many pods report a second meanwhile."""


@dataclass(frozen=True)
class Cost:
    """Of one round, renewal or watcher-second: CPU milliseconds of each service, statements and
    transactions of the orchestrator, calls to the leaderboard."""

    orchestrator_ms: float
    leaderboard_ms: float
    statements: float
    transactions: float
    leaderboard_calls: float


async def measure(plane: ControlPlane, jobs: Sequence[str], curves: Curves) -> dict[str, Cost]:
    """Costs in a control plane in which nothing else goes on; `jobs` are the names of those that it
    has."""
    async with (
        open_aio_channel(plane.orchestrator, plane.pod_token) as pod_channel,
        open_aio_channel(plane.orchestrator, plane.client.connection.token) as client_channel,
    ):
        stub, load = pod_service_pb2_grpc.PodServiceStub(pod_channel), Load()
        rounds = Site(
            stub, open_store(plane.store_url), SkippingClock(), curves, load, never, renewal_s=1e9
        )
        holders = [
            _Holder(replace(rounds, clock=SkippingClock()), f"holder-{number}")
            for number in range(PODS)
        ]
        pods = [SimulatedPod(rounds, f"pod-{number}") for number in range(PODS)]
        tasks = [asyncio.create_task(pod.run()) for pod in pods]
        try:
            await _until(load, WARM_ROUNDS, tasks)
            cost = {
                "a round": await _cost(
                    plane, lambda: _until(load, WARM_ROUNDS + ROUNDS, tasks), ROUNDS
                )
            }
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(holder.take() for holder in holders))
        for name, looks in (("a renewal", False), ("a renewal with looks", True)):
            renew = lambda looks=looks: _each(holders, RENEWALS, looks)  # noqa: E731
            cost[name] = await _cost(plane, renew, RENEWALS * len(holders))
        without = await _cost(plane, lambda: _report(holders), WATCHERS * WATCHED_S)
        stub = job_service_pb2_grpc.JobServiceStub(client_channel)
        tasks = [
            asyncio.create_task(_watch(stub, jobs[number % len(jobs)]))
            for number in range(WATCHERS)
        ]
        await asyncio.sleep(1.0)
        watched = await _cost(plane, lambda: _report(holders), WATCHERS * WATCHED_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pairs = zip(astuple(watched), astuple(without), strict=True)
        cost["a second of a watcher"] = Cost(*(one - other for one, other in pairs))
    return cost


class _Holder(SimulatedPod):
    """A pod that takes one lease and keeps it."""

    async def take(self) -> None:
        self._site.clock.enter()
        while (lease := await self._lease()) is None or lease.WhichOneof("work") != "train":
            if lease is not None:
                await self._evaluate(lease)
        self._held = lease
        self._members = [self._member(spec) for spec in lease.train.cohort.members]
        self._elapsed_s = 0.0

    async def renew(self, looks: bool) -> None:
        self._elapsed_s += 0.01
        await self._renew(
            self._held, self._members, self._members if looks else [], self._elapsed_s
        )


async def _each(holders: Sequence[_Holder], times: int, looks: bool) -> None:
    async def renew(holder: _Holder) -> None:
        for _ in range(times):
            await holder.renew(looks)

    await asyncio.gather(*map(renew, holders))


async def _report(holders: Sequence[_Holder]) -> None:
    ends = time.monotonic() + WATCHED_S
    while time.monotonic() < ends:
        for holder in holders:
            await holder.renew(False)
            await asyncio.sleep(1.0 / REPORTS)


async def _watch(stub: Any, job: str) -> None:
    async for _ in stub.WatchJob(job_service_pb2.WatchJobRequest(name=job)):
        pass


async def _until(load: Load, rounds: int, tasks: Sequence[asyncio.Task[None]]) -> None:
    while len(load.latencies["CommitCheckpoint"]) < rounds:
        await asyncio.sleep(0.01)
        for task in tasks:
            if task.done():
                raise PodracerError("a pod has ended") from task.exception()


async def _cost(plane: ControlPlane, play: Callable[[], Awaitable[None]], count: float) -> Cost:
    """What `play` costs by each of `count` pieces."""
    cpu, counts = plane.cpu_s, plane.counts
    await play()
    cpu = {name: 1e3 * (seconds - cpu[name]) / count for name, seconds in plane.cpu_s.items()}
    grown = {
        name: {what: (number - counts[name][what]) / count for what, number in found.items()}
        for name, found in plane.counts.items()
    }
    own = grown["orchestrator"]
    services = cpu["orchestrator"], cpu["leaderboard"]
    return Cost(*services, own["statements"], own["transactions"], grown["leaderboard"]["calls"])
