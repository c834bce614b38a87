"""Time to a given return with 1 to 64 pods: real orchestrator and leaderboard, pods that replay
measured curves.

Both services are processes of their own (gRPC on loopback, SQLite, a folder store). The pods are
tasks of this process that speak the real PodService: LeaseWork, RenewLease with progress and looks,
CommitCheckpoint with checkpoints that lie in the store, CompleteWork. What they do not do is train:
how good an agent is after so many seconds of a pod comes from benchmarks/simulation/curves.csv (PPO
on HalfCheetah-v5, by learning rate, discount and seed; record_curves.py has recorded it).

Training takes no wall time. While any pod waits for the control plane, the clock runs in real time.
While all pods train, it jumps to the next moment at which one has something to say. So every call
takes its real time, as many calls meet as in reality, and only idle time is left out. The printed
compression is how many seconds of the simulation went into one second of wall time; every other
figure is in seconds of the simulation, which is real time. What the services do after a call has
been answered has to be done in less time than it would have: latencies are rather too large than
too small.

Efficiency of n pods is T(1) / (n · T(n)), for the same job: the same population, members of a pod,
rounds and seeds. No number of pods is faster than the winner's own training L, so the target is set
for the part of what that allows: the efficiency divided by min(1, T(1) / (n · L))."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.arguments import arguments
from lab.report import Target, finish, print_table, spread, versions
from simulation.clock import SkippingClock
from simulation.control_plane import ControlPlane
from simulation.curves import Curves
from simulation.pod import Load, SimulatedPod, Site

from podracer.orchestrator.v1 import job_service_pb2, job_service_pb2_grpc, pod_service_pb2_grpc
from podracer_client.jobs import FINAL_STATES, Job
from podracer_core.errors import PodracerError
from podracer_platform.jobs import parse_job
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import open_aio_channel
from podracer_platform.storage import open_store

PODS = (1, 2, 4, 8, 16, 32, 64)
PAPER = "the paper, 16 to 80 GPUs: 3,200 s to 800 s, an efficiency of 0.8 (its figure 7)"
MEMBERS = 4
START_S = 2.1
"""From a pod's start until it asks for work: measured on two cores, mostly the import of torch. The
same for any n."""
WALL_LIMIT_S = 900.0
JOB = """
name: scaling
environment: {{id: HalfCheetah-v5}}
objective: {{target_return: {target}, statistic: mean, max_env_steps: 1_000_000_000_000}}
search:
  algorithms: [ppo]
  space:
    learning_rate: {{log_uniform: [{rates[0]}, {rates[1]}]}}
    gamma: {{uniform: [{gammas[0]}, {gammas[1]}]}}
evolution: {{population: {population}, leaderboard_size: 8, round: {{seconds: {round_s}}}}}
pod: {{count: {{min: 1, max: {most}}}, layout: fused, members: {members}, envs_per_member: 16}}
evaluation: {{episodes: 32}}
seed: {seed}
"""


@dataclass(frozen=True)
class Outcome:
    """One run with `pods` pods; times in seconds of the simulation, latencies in seconds.

    lineage_s    what the agent that got there had been trained, its ancestors included: no number
                 of pods beats it
    cpu          cores that a service keeps busy, on average
    waited       part of the pods' time in which they waited for an answer (renewals aside: training
                 goes on meanwhile)
    """

    pods: int
    seed: int
    seconds: float
    wall_s: float
    leases: int
    lineage_s: float
    agents: int
    lease_p50_s: float
    lease_p99_s: float
    orchestrator_cpu: float
    leaderboard_cpu: float
    waited: float
    empty_answers: int
    calls: int


def main() -> None:
    parser = arguments(__doc__, "32 agents, 1 and 8 pods, one seed: under a minute", seeds=3)
    parser.add_argument("--pods", type=int, nargs="+", default=list(PODS))
    parser.add_argument("--population", type=int, default=256)
    parser.add_argument("--target", type=float, default=4500.0, help="return to reach")
    parser.add_argument("--round", type=float, default=15.0, help="seconds of a round")
    options = parser.parse_args()
    if options.quick:
        options.pods, options.population, options.seeds, options.target = [1, 8], 32, 1, 3000.0
    curves = Curves()
    print(
        versions("grpcio", "SQLAlchemy"),
        f"· population {options.population}, {MEMBERS} agents a pod",
    )
    outcomes: dict[int, list[Outcome]] = {pods: [] for pods in options.pods}
    for seed in range(options.seeds):
        for pods in options.pods:
            outcome = asyncio.run(simulate(pods, seed, options, curves))
            outcomes[pods].append(outcome)
            print(
                f"seed {seed}, {pods} pods: {outcome.seconds:,.1f} s ({outcome.wall_s:.1f} s of "
                "the wall)",
                flush=True,
            )
    _report(outcomes, options)


async def simulate(pods: int, seed: int, options: argparse.Namespace, curves: Curves) -> Outcome:
    """One job from its submission until it has reached its target."""
    with (
        tempfile.TemporaryDirectory(prefix="scaling-") as folder,
        ControlPlane(Path(folder)) as plane,
    ):
        job = plane.client.submit(parse_job(_job(seed, options, curves)))
        cpu_before = plane.cpu_s
        load, clock, ended = await _work(plane, job, pods, curves)
        cpu = {name: seconds - cpu_before[name] for name, seconds in plane.cpu_s.items()}
        job.refresh()
        if job.state != "SUCCEEDED":
            raise PodracerError(f"the job has ended as {job.state}: {job.message.problem.message}")
        agents = {agent.name: agent for agent in plane.client.agents(job.message.leaderboard)}
        winner = agents[job.progress.best.agent]
        leases = sorted(load.latencies["LeaseWork"])
        return Outcome(
            pods=pods,
            seed=seed,
            seconds=ended + START_S,
            wall_s=clock.wall_s,
            leases=len(load.latencies["CompleteWork"]),
            lineage_s=seconds_from_duration(winner.cost) * MEMBERS,
            agents=len(agents),
            lease_p50_s=statistics.median(leases),
            lease_p99_s=leases[int(0.99 * len(leases))],
            orchestrator_cpu=cpu["orchestrator"] / ended,
            leaderboard_cpu=cpu["leaderboard"] / ended,
            waited=sum(sum(found) for name, found in load.latencies.items() if name != "RenewLease")
            / (pods * ended),
            empty_answers=len(load.latencies["LeaseWork, nothing"]),
            calls=sum(map(len, load.latencies.values())),
        )


async def _work(
    plane: ControlPlane, job: Job, pods: int, curves: Curves
) -> tuple[Load, SkippingClock, float]:
    """Let the pods work until the first of them finds that the job has ended; and when it has."""
    load, clock = Load(), SkippingClock()
    request = job_service_pb2.GetJobRequest(name=job.name)
    async with (
        open_aio_channel(plane.orchestrator, plane.pod_token) as pod_channel,
        open_aio_channel(plane.orchestrator, plane.client.connection.token) as client_channel,
    ):
        jobs = job_service_pb2_grpc.JobServiceStub(client_channel)

        async def has_ended() -> bool:
            return (await jobs.GetJob(request)).job.state in FINAL_STATES

        stub = pod_service_pb2_grpc.PodServiceStub(pod_channel)
        site = Site(stub, open_store(plane.store_url), clock, curves, load, has_ended)
        workers = [SimulatedPod(site, f"pod-{index}") for index in range(pods)]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            async with asyncio.timeout(WALL_LIMIT_S):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return load, clock, max(worker.completed_at for worker in workers)


def _job(seed: int, options: argparse.Namespace, curves: Curves) -> str:
    return JOB.format(
        target=options.target,
        **curves.ranges,
        population=options.population,
        round_s=options.round,
        members=MEMBERS,
        most=max(options.pods),
        seed=seed,
    )


def _report(outcomes: dict[int, list[Outcome]], options: argparse.Namespace) -> None:
    first, last = min(outcomes), max(outcomes)
    alone = [first * outcome.seconds for outcome in outcomes[first]]  # pod seconds
    efficiency = {
        pods: [base / (pods * outcome.seconds) for base, outcome in zip(alone, found, strict=True)]
        for pods, found in outcomes.items()
    }
    of_possible = {
        pods: [
            value / min(1.0, base / (pods * outcome.lineage_s))
            for value, base, outcome in zip(efficiency[pods], alone, found, strict=True)
        ]
        for pods, found in outcomes.items()
    }

    def middle(pods: int, of: Callable[[Outcome], float]) -> float:
        return float(statistics.median(map(of, outcomes[pods])))

    header = ["pods", "seconds", "speed-up", "efficiency", "of what is possible", "pod seconds"]
    print_table(
        f"Time to a return of {options.target:g}, median (least – greatest) of {options.seeds} "
        "seeds",
        [*header, "the winner's own training, s", "agents"],
        [
            [
                pods,
                spread(each.seconds for each in found),
                statistics.median(efficiency[pods]) * pods / first,
                spread(efficiency[pods]),
                spread(of_possible[pods]),
                pods * middle(pods, lambda each: each.seconds),
                middle(pods, lambda each: each.lineage_s),
                int(middle(pods, lambda each: each.agents)),
            ]
            for pods, found in outcomes.items()
        ],
    )
    print(PAPER)
    columns: dict[str, Callable[[Outcome], float]] = {
        "rounds/s": lambda each: each.leases / each.seconds,
        "calls/s": lambda each: each.calls / each.seconds,
        "LeaseWork p50, ms": lambda each: 1000.0 * each.lease_p50_s,
        "p99, ms": lambda each: 1000.0 * each.lease_p99_s,
        "orchestrator, cores": lambda each: each.orchestrator_cpu,
        "leaderboard, cores": lambda each: each.leaderboard_cpu,
        "pods waited, %": lambda each: 100.0 * each.waited,
        "asked in vain": lambda each: each.empty_answers,
        "compression": lambda each: each.seconds / each.wall_s,
    }
    print_table(
        "The control plane, in real time",
        ["pods", *columns],
        [[pods, *(middle(pods, of) for of in columns.values())] for pods in outcomes],
    )
    finish(
        "scaling",
        {
            "target_return": options.target,
            "population": options.population,
            "runs": [asdict(each) for found in outcomes.values() for each in found],
            "efficiency": {str(pods): found for pods, found in efficiency.items()},
            "of_possible": {str(pods): found for pods, found in of_possible.items()},
        },
        {
            f"of_what_is_possible_{last}_pods": Target(
                statistics.median(of_possible[last]), 0.8 if last <= 64 else 0.7
            )
        },
    )


if __name__ == "__main__":
    main()
