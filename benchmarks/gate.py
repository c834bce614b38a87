"""How long other callers wait while somebody attacks the orchestrator.

    python benchmarks/gate.py [--quick]

An orchestrator in a process of its own, a caller who asks for a job fifty times a second, and
attackers in a second process. Without a token: 8,300 calls a second of which only the headers come,
and requests of 16 MiB that compress to 16 KiB. With the token of one project: 3,000 such half-open
calls, which stay open, and jobs with 200 KiB of arguments from 32 callers at once."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from report import Target, finish, print_table, versions
from simulation.control_plane import ControlPlane

from podracer.orchestrator.v1 import job_service_pb2, job_service_pb2_grpc
from podracer_core.errors import PodracerError
from podracer_platform.jobs.job_file import parse_job
from podracer_platform.rpc.channel import open_aio_channel
from podracer_platform.rpc.tokens import Role

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.support.raw_http2 import RawConnection

SERVICE = "/podracer.orchestrator.v1."
TENANT = "hostile-tenant"
JOB = "name: load\nenvironment: {id: CartPole-v1}\nobjective: {max_duration: 1h}\n"
EVERY_S = 0.02
ATTACKS = ("half-open", "compressed", "tenant: half-open", "tenant: specifications")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="5 s for each attack: under a minute")
    parser.add_argument("--attack", nargs=2, metavar=("NAME", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        asyncio.run(attack(*options.attack))
        return
    print(versions("grpcio"))
    with tempfile.TemporaryDirectory(prefix="gate-") as folder, ControlPlane(Path(folder)) as plane:
        tokens = plane.tokens / Role.CLIENT
        own = tokens.read_text().strip()
        tokens.write_text(f"{own}\n{TENANT} projects/hostile\n")
        asyncio.run(measure(plane, own, 5.0 if options.quick else 30.0))


async def measure(plane: ControlPlane, token: str, seconds: float) -> None:
    """Each attack in turn, after a time without any."""
    found: dict[str, list[float]] = {}
    grown: dict[str, float] = {}
    async with open_aio_channel(plane.orchestrator, token) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        spec = parse_job(JOB).to_message()
        created = await stub.CreateJob(
            job_service_pb2.CreateJobRequest(parent="projects/own", spec=spec)
        )
        for name in ("nothing", *ATTACKS):
            before = plane.memory_mb["orchestrator"]
            with attacking(name, plane.orchestrator):
                found[name] = await latencies(stub, created.job.name, seconds)
            grown[name] = plane.memory_mb["orchestrator"] - before
    alone = quantile(found["nothing"], 0.99)
    rows = [
        [name, *(1e3 * quantile(times, part) for part in (0.5, 0.99, 1.0)), len(times), grown[name]]
        for name, times in found.items()
    ]
    print_table(
        "another caller's GetJob",
        ["during", "p50, ms", "p99, ms", "worst, ms", "calls", "memory, MB"],
        rows,
    )
    targets = {
        f"{name}, p99, ms {'more' if name in ATTACKS[:2] else ''}".strip(): (
            Target(1e3 * (quantile(found[name], 0.99) - alone), 50.0, at_most=True)
            if name in ATTACKS[:2]
            else Target(1e3 * quantile(found[name], 0.99), 100.0, at_most=True)
        )
        for name in ATTACKS
    }
    finish(
        "gate",
        {
            name: [1e3 * quantile(times, part) for part in (0.5, 0.99)]
            for name, times in found.items()
        },
        targets,
    )


async def latencies(
    stub: job_service_pb2_grpc.JobServiceStub, job: str, seconds: float
) -> list[float]:
    """Seconds of each call; one that failed counts as ten."""
    found, end = [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        try:
            await stub.GetJob(job_service_pb2.GetJobRequest(name=job), timeout=10.0)
            found.append(time.perf_counter() - began)
        except PodracerError as error:
            print(f"a call failed: {error}")
            found.append(10.0)
        await asyncio.sleep(max(0.0, began + EVERY_S - time.perf_counter()))
    return found


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


# The other process
# ----------------------------------------------------------------------------------------------------


@contextmanager
def attacking(name: str, address: str) -> Iterator[None]:
    """A process that attacks meanwhile; it has begun."""
    if name not in ATTACKS:
        yield
        return
    command = [sys.executable, __file__, "--attack", name, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None, "asked for as a pipe above"
        process.stdout.readline()
        yield
        process.kill()


async def attack(name: str, address: str) -> None:
    """Attack until the process ends."""
    print("begun", flush=True)
    if name == "compressed":
        await asyncio.gather(*(send_compressed(address) for _ in range(4)))
    elif name == "tenant: specifications":
        await asyncio.gather(*(create_jobs(address, number) for number in range(32)))
    token = TENANT if name.startswith("tenant") else ""
    with RawConnection(address) as connection:
        while True:
            connection.open_calls(f"{SERVICE}JobService/GetJob", 3000 if token else 8300, token)
            for _ in range(10):
                await asyncio.sleep(0.1)
                connection.read()
            while token:
                await asyncio.sleep(1.0)
                connection.read()


async def send_compressed(address: str) -> None:
    payload = b"\x22\x00" * (8 << 20)
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        renew = channel.unary_unary(f"{SERVICE}PodService/RenewLease")
        while True:
            try:
                await renew(payload, timeout=60.0, compression=grpc.Compression.Gzip)
            except grpc.RpcError:
                await asyncio.sleep(0.01)


async def create_jobs(address: str, number: int) -> None:
    spec = parse_job(JOB).to_message()
    spec.environment.kwargs.update({f"argument_{index}": [0.5] * 10 for index in range(1500)})
    async with open_aio_channel(address, TENANT) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        while True:
            try:
                await stub.CreateJob(
                    job_service_pb2.CreateJobRequest(parent="projects/hostile", spec=spec),
                    timeout=60.0,
                )
            except PodracerError:
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    main()
