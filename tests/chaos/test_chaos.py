"""A tournament goes on while everything that it consists of is killed and frozen at random: nothing
is lost.

PODRACER_CHAOS_FAULTS and PODRACER_CHAOS_SEED say how many faults, and which;
PODRACER_CHAOS_DATABASE where the control plane's state is (sqlite, postgresql);
PODRACER_CHAOS_STORE which S3 server has the objects (minio, versitygw, rclone). `make chaos` has a
hundred."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from chaos.faults import Fault, Faults

from podracer_client.jobs import Job
from podracer_core.errors import PodracerError
from podracer_platform.jobs import parse_job
from podracer_platform.storage import open_store
from support.audit import Audit
from support.deployment import Deployment
from support.postgresql import PostgresServer
from support.s3_server import SECRET_KEY, S3Server, default_program

FAULTS = int(os.environ.get("PODRACER_CHAOS_FAULTS", "12"))
SEED = int(os.environ.get("PODRACER_CHAOS_SEED", "1"))
PAUSE_S = (0.5, 3.0)
END_S = 600.0
DATABASE = os.environ.get("PODRACER_CHAOS_DATABASE", "sqlite")
DISK_BYTES = 64 << 20
ROLES = ("orchestrator", "leaderboard")
JOBS = {
    "cartpole": ("CartPole-v1", 8_192, {"horizon": 32, "minibatch_size": 256, "epochs": 4}),
    "pendulum": ("Pendulum-v1", 8_192, {"horizon": 32, "minibatch_size": 256, "epochs": 4}),
}
STEPS_A_FAULT = 16_384
"""Budget of each job for every fault: there has to be something to disturb."""


def job_text(name: str, env_steps: int, cpu: float = 0.0) -> str:
    """With a budget of `env_steps`. `cpu`: cores that its pods ask for; 0: it does not say."""
    environment, round_steps, space = JOBS[name]
    resources = {"resources": {"cpu": cpu, "memory": "1Gi"}} if cpu else {}
    return json.dumps({
        "name": name,
        "environment": {"id": environment},
        "objective": {"max_env_steps": env_steps},
        "search": {"algorithms": ["ppo"], "space": {**space, "learning_rate": {"log_uniform": [1e-4, 1e-2]}}},
        "evolution": {"population": 4, "leaderboard_size": 4, "round": {"env_steps": round_steps}},
        "pod": {"count": {"min": 1, "max": 2}, "members": 2, "envs_per_member": 16, "layout": "split", "workers": 1}
        | resources,
        "evaluation": {"episodes": 8},
        "seed": SEED,
    })  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path has room for 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def s3(folder: Path) -> Iterator[S3Server]:
    server = S3Server(
        folder / "buckets", program=os.environ.get("PODRACER_CHAOS_STORE") or default_program()
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def disk(folder: Path) -> Iterator[Path | None]:
    """A small disk for the databases' files, where this user may make one."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if DATABASE != "sqlite" or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def database(folder: Path) -> Iterator[PostgresServer | None]:
    if DATABASE == "sqlite":
        yield None
        return
    folder.chmod(0o755)
    server = PostgresServer(folder / "postgres")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def deployment(
    folder: Path, s3: S3Server, disk: Path | None, database: PostgresServer | None
) -> Iterator[Deployment]:
    keys = {name.removeprefix("PODRACER_").lower(): value for name, value in s3.variables.items()}
    files = folder if disk is None else disk
    databases = {role: f"sqlite:///{files}/{role}.db" for role in ROLES}
    if database is not None:
        databases = {role: database.create_database(role) for role in ROLES}
    deployment = Deployment(
        folder,
        "s3://podracer",
        tls=True,
        databases=databases,
        collect=True,
        **keys,
        s3_read_timeout="3s",
    )
    try:
        deployment.start_leaderboard()
        deployment.start_orchestrator()
        for pod in ("a", "b"):
            deployment.start_split_pod(pod)
        yield deployment
    finally:
        deployment.end_processes()


def looked_at(job: Job) -> Job:
    """As the control plane has it, which may be away just now."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            job.refresh()
        except PodracerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return job


def leaked(deployment: Deployment) -> list[str]:
    """Secrets that some process has written to its log."""
    tokens = {
        path.name: path.read_text().split() for path in (deployment.secrets / "tokens").iterdir()
    }
    keys = {
        str(path): path.read_text().splitlines()[1:2]
        for path in (deployment.secrets / "tls").rglob("key.pem")
    }
    secrets = tokens | keys | {"store": [SECRET_KEY]}
    logs = {path.name: path.read_text(errors="replace") for path in deployment.folder.glob("*.log")}
    assert all(texts for texts in secrets.values()), "nothing to look for"
    return [
        f"{log} has the secret {name}"
        for name, texts in secrets.items()
        for text in texts
        for log, written in logs.items()
        if text in written
    ]


def write_report(faults: Sequence[Fault]) -> None:
    """Where PODRACER_CHAOS_REPORT says, a table as JSON."""
    if report := os.environ.get("PODRACER_CHAOS_REPORT"):
        table = [
            {"fault": one.name, "tries": one.tries, "survived": one.survived, "lost": one.lost}
            for one in faults
        ]
        Path(report).parent.mkdir(parents=True, exist_ok=True)
        Path(report).write_text(json.dumps(table, indent=1))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost(deployment, s3, folder, disk, database):
    chance = random.Random(SEED)
    faults = Faults(deployment, s3, database, disk).all
    chance.shuffle(faults)
    with deployment.client() as client:
        jobs: list[Job] = [
            client.submit(parse_job(job_text(name, max(4, FAULTS) * STEPS_A_FAULT)))
            for name in JOBS
        ]
        seen = {job.name: 0 for job in jobs}
        for number in range(FAULTS):
            time.sleep(chance.uniform(*PAUSE_S))
            fault = faults[number % len(faults)] if number < len(faults) else chance.choice(faults)
            fault.tries += 1
            fault.act(chance)
            for job in jobs:
                steps = looked_at(job).progress.env_steps
                if steps < seen[job.name]:
                    fault.lost.append(f"{job.name}: {seen[job.name] - steps} steps")
                seen[job.name] = max(seen[job.name], steps)
            fault.survived += not fault.lost
        deadline = time.monotonic() + END_S
        while any(looked_at(job).state in ("RUNNING", "VALIDATING") for job in jobs):
            assert time.monotonic() < deadline, "the jobs have not ended"
            time.sleep(0.5)
        assert {job.state for job in jobs} == {"SUCCEEDED"}, [job.message.problem for job in jobs]
    audit = Audit(**deployment.databases)
    audit.await_deliveries()
    for name in list(deployment.processes):
        deployment.kill(name, 15)
        assert deployment.processes[name].wait(60) == 0, deployment.log(name)[-2000:]
    store = open_store(deployment.common["store"], s3.settings)
    found = audit.at_rest(store)
    store.close()
    found += [f"left in shared memory: {path.name}" for path in (folder / "shm").iterdir()]
    found += [
        f"left in the spool: {path}"
        for path in (folder / "spool").rglob("*")
        if path.name != ".lock"
    ]
    found += leaked(deployment)
    write_report(faults)
    assert not found
    assert not [one for one in faults if one.lost]
