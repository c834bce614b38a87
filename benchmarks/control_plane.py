"""Load on orchestrator and leaderboard: thousands of pods that lease, renew and complete, and
hundreds that watch.

First what single things cost, where nothing else goes on: a round of two agents, a renewal, a
second of a watcher; in CPU time, statements and transactions of the database, and calls to the
leaderboard (`--costs`: only these).

Then the load. Both services are processes of their own (gRPC on loopback, SQLite or `--postgresql`,
a folder store). The pods are tasks of two other processes that speak the real PodService as
`benchmarks/scaling.py`'s do, in real time: a renewal with progress every ten seconds of a term of
thirty, with a look of each agent every second time, and at the end of a round checkpoints in the
store, CommitCheckpoint and CompleteWork. Everything shares the cores of this machine, so the load's
own cost is part of what is measured, and is printed. Pods arrive evenly over the first round, so
that their rounds end evenly too.

The latency of LeaseWork counts where it brought work. Memory is flat where its growth over the last
three quarters of the run, as a straight line, is less than a twentieth."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from lab.arguments import arguments
from lab.report import Target, finish, print_table, versions
from lab.statistics import quantile
from simulation import costs
from simulation.clock import WallClock
from simulation.control_plane import ControlPlane
from simulation.curves import Curves
from simulation.pod import Load, SimulatedPod, Site, never

from podracer.orchestrator.v1 import job_service_pb2, job_service_pb2_grpc, pod_service_pb2_grpc
from podracer_platform.jobs import parse_job
from podracer_platform.rpc import Backoff, FileToken, open_aio_channel
from podracer_platform.storage import open_store

LOADERS = 2
MEMBERS = 2
JOBS_AT_LEAST, PODS_A_JOB_AT_MOST = 5, 100
COST_JOBS, COST_PODS = 4, 8
RENEWAL_S, LEASE_TERM_S = 10.0, 30.0
LOOK_EVERY = 2  # renewals
IDLE_S = 2.0
SAMPLE_S = 5.0
GROWTH = 0.05
JOB = """
name: load-{number}
environment: {{id: HalfCheetah-v5}}
objective: {{max_duration: 1000h}}
search:
  algorithms: [ppo]
  space:
    learning_rate: {{log_uniform: [{rates[0]}, {rates[1]}]}}
    gamma: {{uniform: [{gammas[0]}, {gammas[1]}]}}
evolution:
  {{population: {population}, leaderboard_size: 8, adaptive_rounds: false,
   round: {{seconds: {round_s}}}}}
pod: {{count: {{min: 1, max: {pods}}}, layout: fused, members: {members}, envs_per_member: 16}}
evaluation: {{episodes: 32}}
seed: {number}
"""


@dataclass(frozen=True)
class Share:
    """What one loading process does: which pods it plays, and which jobs it watches how often."""

    orchestrator: str
    pod_token: str
    client_token: str
    store: str
    pods: range
    watched: list[str]
    ramp_s: float
    length_s: float


def main() -> None:
    parser = arguments(__doc__, "100 pods, 10 watchers, 24 s: under a minute")
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--round", type=float, default=60.0, help="seconds of a round")
    parser.add_argument(
        "--postgresql", default="", help="URL of a database whose server both services use instead"
    )
    parser.add_argument(
        "--costs", action="store_true", help="only what a round, a renewal and a watcher cost"
    )
    options = parser.parse_args()
    if options.quick:
        options.pods, options.watchers, options.minutes, options.round = 100, 10, 24 / 60, 12.0
    print(
        versions("grpcio", "SQLAlchemy"),
        f"· {options.pods} pods, {options.watchers} watchers, {options.round:g} s a round",
    )
    with (
        tempfile.TemporaryDirectory(prefix="costs-") as folder,
        ControlPlane(Path(folder), options.postgresql) as plane,
    ):
        found = _costs(plane)
    if options.costs:
        finish("control_plane", {"costs": found}, {})
        return
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as folder,
        ControlPlane(Path(folder), options.postgresql, LEASE_TERM_S) as plane,
    ):
        _report(options, found, *_run(plane, options))


def _costs(plane: ControlPlane) -> dict[str, dict[str, float]]:
    """CPU and statements of a round, a renewal and a second of a watcher, where nothing else goes
    on."""
    settings = argparse.Namespace(round=20.0)
    jobs = [
        plane.client.submit(parse_job(_job(number, settings, COST_PODS)))
        for number in range(COST_JOBS)
    ]
    found = asyncio.run(costs.measure(plane, [job.name for job in jobs], Curves()))
    names = list(costs.Cost.__dataclass_fields__)
    rows = [[what, *(getattr(cost, name) for name in names)] for what, cost in found.items()]
    print_table("What it costs", ["", *(name.replace("_", " ") for name in names)], rows)
    return {what: asdict(cost) for what, cost in found.items()}


Sample = tuple[float, dict[str, float], dict[str, float], float]
"""Seconds since the start, memory (MB) and CPU seconds of each service, CPU seconds of the load."""


def _run(
    plane: ControlPlane, options: argparse.Namespace
) -> tuple[list[Sample], list[dict[str, Any]]]:
    count = max(JOBS_AT_LEAST, -(-options.pods // PODS_A_JOB_AT_MOST))
    jobs = [
        plane.client.submit(parse_job(_job(number, options, options.pods // count)))
        for number in range(count)
    ]
    length_s, ramp_s = options.minutes * 60.0, min(options.round, options.minutes * 60.0 / 2)
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = []
    for index in range(LOADERS):
        share = Share(
            plane.orchestrator,
            str(plane.tokens / "pod"),
            str(plane.tokens / "client"),
            plane.store_url,
            range(index, options.pods, LOADERS),
            [jobs[watcher % len(jobs)].name for watcher in range(index, options.watchers, LOADERS)],
            ramp_s,
            length_s,
        )
        processes.append(context.Process(target=_load, args=(share, results)))
        processes[-1].start()
    samples, began = [], time.monotonic()
    while (elapsed_s := time.monotonic() - began) < length_s:
        load_cpu_s = sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)
        samples.append((elapsed_s, plane.memory_mb, plane.cpu_s, load_cpu_s))
        memory = ", ".join(f"{name} {found:.0f} MB" for name, found in samples[-1][1].items())
        print(f"{elapsed_s:5.0f} of {length_s:.0f} s: {memory}", flush=True)
        time.sleep(SAMPLE_S)
    found = [json.loads(results.get(timeout=120.0)) for _ in processes]
    for process in processes:
        process.join(30.0)
    return samples, found


def _load(share: Share, results: Any) -> None:
    results.put(json.dumps(asyncio.run(_play(share))))


async def _play(share: Share) -> dict[str, Any]:
    """Play the pods and the watchers until the time is over; what they have seen."""
    curves, load, clock = Curves(), Load(), WallClock()
    updates: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    async with (
        open_aio_channel(share.orchestrator, FileToken(Path(share.pod_token))) as pod_channel,
        open_aio_channel(share.orchestrator, FileToken(Path(share.client_token))) as client_channel,
    ):
        watching = job_service_pb2_grpc.JobServiceStub(client_channel)
        stub = pod_service_pb2_grpc.PodServiceStub(pod_channel)

        store = open_store(share.store)
        site = Site(stub, store, clock, curves, load, never, RENEWAL_S, LOOK_EVERY, IDLE_S)

        async def play(number: int) -> None:
            await asyncio.sleep(share.ramp_s * number / max(share.pods.stop, 1))
            waits = Backoff(1.0, 30.0)
            while True:
                try:
                    await SimulatedPod(site, f"pod-{number}").run()
                    waits.reset()
                except Exception as error:  # noqa: BLE001 - counted, and the pod starts again as a real one would
                    failures[f"{type(error).__name__}: {str(error)[:100]}"] += 1
                await asyncio.sleep(next(waits))

        async def watch(job: str) -> None:
            waits = Backoff(1.0, 30.0)
            while True:
                try:
                    async for _ in watching.WatchJob(job_service_pb2.WatchJobRequest(name=job)):
                        updates[job] += 1
                except Exception as error:  # noqa: BLE001
                    failures[f"watch, {type(error).__name__}: {str(error)[:100]}"] += 1
                await asyncio.sleep(next(waits))

        tasks = [asyncio.create_task(play(number)) for number in share.pods]
        tasks += [asyncio.create_task(watch(job)) for job in share.watched]
        await asyncio.sleep(share.length_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "latencies": dict(load.latencies),
        "updates": updates.total(),
        "failures": failures,
    }


def _report(
    options: argparse.Namespace,
    costs_found: dict[str, dict[str, float]],
    samples: list[Sample],
    found: list[dict[str, Any]],
) -> None:
    latencies: dict[str, list[float]] = defaultdict(list)
    failures: Counter[str] = Counter()
    for each in found:
        failures.update(each["failures"])
        for method, seconds in each["latencies"].items():
            latencies[method] += seconds
    length_s, header = samples[-1][0], ["calls", "calls/s", "p50, ms", "p99, ms", "longest, ms"]
    calls = {
        method: [
            len(taken),
            len(taken) / length_s,
            *(1000.0 * quantile(taken, part) for part in (0.5, 0.99, 1.0)),
        ]
        for method, taken in sorted(latencies.items())
    }
    print_table("Calls", ["method", *header], [[name, *row] for name, row in calls.items()])
    steady = [sample for sample in samples if sample[0] >= length_s / 4]
    (begin_s, first_mb, first_cpu_s, first_load_s), *_ = steady
    end_s, last_mb, last_cpu_s, last_load_s = steady[-1]
    seconds_long = end_s - begin_s
    growth = {
        name: _growth([(at, memory[name]) for at, memory, _, _ in steady]) for name in first_mb
    }
    cpu = {name: (last_cpu_s[name] - first_cpu_s[name]) / seconds_long for name in growth}
    print_table(
        "Services, the last three quarters",
        ["", "cores", "µs a pod and second", "MB, first", "MB, last"],
        [
            [name, cpu[name], 1e6 * cpu[name] / options.pods, first_mb[name], last_mb[name]]
            for name in growth
        ],
    )
    cpu["the load"] = (last_load_s - first_load_s) / seconds_long
    updates = sum(each["updates"] for each in found)
    print(f"the load itself: {cpu['the load']:.2f} cores; {updates} updates watched")
    for what, count in sorted(failures.items()):
        print(f"{count} failures: {what}")
    finish(
        "control_plane",
        {
            "pods": options.pods,
            "watchers": options.watchers,
            "costs": costs_found,
            "calls": calls,
            "cores": cpu,
            "memory_mb": {name: [sample[1][name] for sample in samples] for name in growth},
            "failures": dict(failures),
        },
        {
            f"{name}_p99_ms": Target(1000.0 * quantile(latencies[method], 0.99), most, at_most=True)
            for name, method, most in (
                ("renew_lease", "RenewLease", 100.0),
                ("lease_work", "LeaseWork", 250.0),
            )
        }
        | {"memory_growth": Target(max(growth.values()), GROWTH, at_most=True)},
    )


def _growth(points: list[tuple[float, float]]) -> float:
    """By which part of its mean a straight line through the points rises from the first to the
    last."""
    if len(points) < 2:
        return 0.0
    slope, _ = statistics.linear_regression(
        [at for at, _ in points], [value for _, value in points]
    )
    return slope * (points[-1][0] - points[0][0]) / statistics.fmean(value for _, value in points)


def _job(number: int, options: argparse.Namespace, pods: int) -> str:
    curves = Curves()
    return JOB.format(
        number=number,
        **curves.ranges,
        population=4 * pods,
        round_s=options.round,
        members=MEMBERS,
        pods=pods,
    )


if __name__ == "__main__":
    main()
