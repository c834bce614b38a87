"""`docker compose up` for real: a job survives its containers being killed, and nothing is lost
over a restart.

Needs Docker: `make e2e-compose`. PODRACER_COMPOSE_KEEP=1 leaves everything running.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table

from podracer_client import Client, Job, PolicyClient
from podracer_core.checkpoint import POLICY_GROUPS, load_checkpoint, load_policy
from podracer_core.errors import PodracerError, Unauthenticated
from podracer_platform.jobs import parse_job
from podracer_platform.storage import open_store
from support.client_programs import LANGUAGES, build_client, check_output, copy_clients, run
from support.red_team import FIND, attack, check_found_nothing

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
PROJECT = "podracer-e2e"
SCALE = {"learner": 2, "worker": 4}
RUNNING = {"minio": 1, "orchestrator": 1, "leaderboard": 1, "evaluator": 1, **SCALE}
ENV = dict(
    line.split("=", 1)
    for line in (ROOT / ".env").read_text().splitlines()
    if not line.startswith("#")
)
IMAGES = f"{ENV['PODRACER_REGISTRY']}/podracer-"
MINIO = f"{IMAGES}minio:{ENV['PODRACER_TAG']}"
MOST_BYTES = 155_000_000
"""That an image of the control plane adds to its base. Cryptography and protovalidate, which check
tokens and requests, are 25 MB of it."""
MOST_POD_BYTES = 350_000_000
"""That an image of a pod has besides torch and the base."""
BUDGET = 60 * 16_384
JOB_AGENTS, ROLLOUT = 4, 16 * 32  # env steps of an agent
JOB = {
    "name": "compose",
    "environment": {"id": "CartPole-v1"},
    "objective": {"max_env_steps": BUDGET},
    "search": {
        "algorithms": ["ppo"],
        "space": {
            "horizon": 32,
            "minibatch_size": 256,
            "epochs": 4,
            "learning_rate": {"log_uniform": [1e-4, 1e-2]},
        },
    },
    "evolution": {"population": 4, "leaderboard_size": 4, "round": {"env_steps": 16_384}},
    "pod": {
        "count": {"min": 1, "max": 2},
        "members": 2,
        "envs_per_member": 16,
        "layout": "split",
        "workers": 2,
    },
    "evaluation": {"episodes": 8},
    "seed": 1,
}


class Deployment:
    """The compose project of this test, at ports of its own; `rows` is what the table at the end
    shows."""

    def __init__(self) -> None:
        self.orchestrator, self.leaderboard, self.policy = (
            f"127.0.0.1:{_free_port()}" for _ in range(3)
        )
        self.policies = ""
        self.rows: list[tuple[str, float, str]] = []

    def compose(self, *arguments: str, timeout_s: float = 600.0) -> str:
        """Run `docker compose`; returns what it prints."""
        environment = os.environ | {
            "PODRACER_PORT": self.orchestrator.rpartition(":")[2],
            "PODRACER_LEADERBOARD_PORT": self.leaderboard.rpartition(":")[2],
            "PODRACER_POLICY_PORT": self.policy.rpartition(":")[2],
            "PODRACER_POLICIES": self.policies,
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        }
        files = ["--file", "docker-compose.yml", "--file", "tests/compose/collector.yaml"]
        command = [
            "docker",
            "compose",
            *files,
            "--project-name",
            PROJECT,
            "--progress",
            "plain",
            *arguments,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, (
            f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def up(self) -> None:
        scale = [
            word for service, count in SCALE.items() for word in ("--scale", f"{service}={count}")
        ]
        self.compose("up", "--detach", "--no-build", *scale)

    def containers(self) -> list[dict[str, Any]]:
        """Those that run."""
        return [json.loads(line) for line in self.compose("ps", "--format", "json").splitlines()]

    def unhealthy(self) -> dict[str, int]:
        """How many containers of each service are still missing."""
        healthy = [one["Service"] for one in self.containers() if one["Health"] == "healthy"]
        return {service: count - healthy.count(service) for service, count in RUNNING.items()}

    def spans(self) -> list[dict[str, Any]]:
        """What the containers have sent to the collector."""
        lines = self.compose("exec", "-T", "collector", "cat", "/tmp/spans.jsonl").splitlines()
        return [json.loads(line) for line in lines]

    def token(self) -> str:
        return self.compose("exec", "-T", "orchestrator", "podracer", "token").strip()

    def client(self) -> Client:
        return Client.connect(self.orchestrator, self.leaderboard, token=self.token())

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """A row of the table; what is put into the list stands beside it."""
        start, notes = time.monotonic(), list[str]()
        yield notes
        self.rows.append((name, time.monotonic() - start, ", ".join(notes)))


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    deployment = Deployment()
    try:
        yield deployment
    except BaseException:
        sys.stderr.write(deployment.compose("logs", "--tail", "40"))
        raise
    finally:
        if not os.environ.get("PODRACER_COMPOSE_KEEP"):
            deployment.compose(
                "--profile", "policy", "down", "--volumes", "--remove-orphans", "--timeout", "30"
            )
        table = Table("step", "seconds", "seen", title="docker compose")
        for name, seconds, note in deployment.rows:
            table.add_row(name, f"{seconds:.1f}", note)
        Console(width=140).print(table)


def test_a_job_survives_on_compose(deployment, tmp_path):
    with deployment.step("build") as notes:
        deployment.compose("--profile", "policy", "build", timeout_s=3000.0)
        base = _image_bytes("python:3.11-slim")
        sizes = {
            role: _image_bytes(f"{IMAGES}{role}:{ENV['PODRACER_TAG']}") - base
            for role in ("orchestrator", "leaderboard", "worker")
        }
        sizes["worker beside torch"] = _pod_bytes(f"{IMAGES}worker:{ENV['PODRACER_TAG']}")
        notes += [f"{role} {size / 1e6:.0f} MB" for role, size in sizes.items()]
        notes += [f"besides {base / 1e6:.0f} MB of the base"]
        notes += [f"minio {_image_bytes(MINIO) / 1e6:.0f} MB"]
    with deployment.step("up, until all are healthy") as notes:
        deployment.up()
        _await(
            "all are healthy",
            120.0,
            lambda: not any(deployment.unhealthy().values()),
            deployment.unhealthy,
        )
        notes += [f"{len(deployment.containers())} containers"]

    with deployment.client() as client:
        with (
            pytest.raises(Unauthenticated),
            Client.connect(deployment.orchestrator, token="wrong") as stranger,
        ):
            stranger.jobs()
        clients = copy_clients(tmp_path)
        for language in LANGUAGES:
            with deployment.step(f"a job by the client in {language}") as notes:
                variables = {
                    "PODRACER_ORCHESTRATOR": deployment.orchestrator,
                    "PODRACER_LEADERBOARD": deployment.leaderboard,
                    "PODRACER_TOKEN": deployment.token(),
                }
                notes += [
                    check_output(run(*build_client(language, clients), cwd=tmp_path, **variables))
                ]
        with deployment.step("hostile code finds nothing") as notes:
            notes += [check_red_team(deployment, client, tmp_path)]
        with deployment.step("job from this machine, two learners at work") as notes:
            job = client.submit(parse_job(json.dumps(JOB)))
            _await(
                "two pods work",
                180.0,
                lambda: len(_busy(job)) == 2,
                lambda: [pod.name for pod in job.pods()],
            )
            notes += [pod.name.rpartition("/")[2] for pod in _busy(job)]
        for service in ("worker", "leaderboard", "minio"):
            with deployment.step(f"docker kill of {service}, started again after 5 s") as notes:
                before = _looked_at(job).progress.env_steps
                name = next(
                    one["Name"] for one in deployment.containers() if one["Service"] == service
                )
                subprocess.run(
                    ["docker", "kill", name], check=True, capture_output=True, timeout=60
                )
                time.sleep(5.0)
                subprocess.run(
                    ["docker", "start", name], check=True, capture_output=True, timeout=60
                )
                _await(
                    "steps are counted again",
                    180.0,
                    lambda before=before: _looked_at(job).ended or job.progress.env_steps > before,
                    lambda: _looked_at(job).state,
                )
                notes += [f"{before:,} steps before, {job.progress.env_steps:,} after"]
        with deployment.step("the job ends") as notes:
            _await("the job has ended", 1200.0, lambda: _looked_at(job).ended, lambda: job.progress)
            notes += [job.state, f"{job.progress.env_steps:,} of {BUDGET:,} steps"]
        assert job.state == "SUCCEEDED", job.message.problem
        # A rollout is shorter while a worker is lost, so that the last ones may go beyond the
        # budget.
        assert BUDGET <= job.progress.env_steps < BUDGET + JOB_AGENTS * ROLLOUT
        board = [
            (one.agent.name, one.evaluation.evaluation_id) for one in job.leaderboard().candidates
        ]
        assert board

    with deployment.step("one trace through all services") as notes:
        _await(
            "spans have come",
            60.0,
            lambda: not _missing_paths(deployment.spans()),
            lambda: _missing_paths(deployment.spans()),
        )
        notes += [f"{len(deployment.spans()):,} spans"]
    with deployment.step("down, up again") as notes:
        deployment.compose("down", "--timeout", "60")
        deployment.up()
        _await(
            "all are healthy",
            120.0,
            lambda: not any(deployment.unhealthy().values()),
            deployment.unhealthy,
        )
    with (
        deployment.client() as client,
        deployment.step("the job and its leaderboard are there") as notes,
    ):
        again = client.job(job.name)
        assert again.state == "SUCCEEDED"
        assert [
            (one.agent.name, one.evaluation.evaluation_id) for one in again.leaderboard().candidates
        ] == board
        again.download_best(tmp_path / "best")
        assert (tmp_path / "best" / "manifest.json").is_file()
        notes += [f"{len(board)} candidates", "best policy downloaded"]
        client.promote(job.name)
    with deployment.step("its champion is served") as notes:
        deployment.policies = f"live={job.name}@champion"
        deployment.compose(
            "--profile", "policy", "up", "--detach", "--no-build", "--no-deps", "--wait", "policy"
        )
        observations = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
        with PolicyClient(deployment.policy, token=deployment.token()) as policies:
            answer = policies.answer(observations, policy="live")
        best = load_policy(
            load_checkpoint(open_store((tmp_path / "best").as_uri()), "", groups=POLICY_GROUPS)
        )
        expected = best(torch.from_numpy(observations))
        assert answer.actions.tolist() == expected.tolist()
        notes += [answer.version]
    for role in ("orchestrator", "leaderboard"):
        assert sizes[role] < MOST_BYTES, f"{role} adds {sizes[role] / 1e6:.0f} MB"
    assert sizes["worker beside torch"] < MOST_POD_BYTES


def check_red_team(deployment: Deployment, client: Client, folder: Path) -> str:
    """It finds nothing in a split pod, and leaves nothing running there."""
    services, tops = ("worker", "evaluator", "learner"), ("/secrets", "/cache", "/shm", "/spool")
    found = [
        deployment.compose("exec", "-T", service, "python", "-c", FIND, *tops)
        for service in services
    ]
    job = attack(client, folder, "".join(found), {"layout": "split"})
    _await("the job has ended", 180.0, lambda: _looked_at(job).ended, lambda: job.state)
    check_found_nothing(job)

    def left() -> list[str]:
        names = [one["Name"] for one in deployment.containers() if one["Service"] in services]
        commands = [["docker", "top", name, "-eo", "pid,args"] for name in names]
        tables = [
            subprocess.run(each, check=True, capture_output=True, text=True, timeout=60)
            for each in commands
        ]
        return [
            line for table in tables for line in table.stdout.splitlines() if "time.sleep" in line
        ]

    _await("what it has started ends", 60.0, lambda: not left(), left)
    return f"{len(set(''.join(found).split()))} files and folders tried"


PATHS = {
    "a rollout": ("worker", "learner", "orchestrator"),
    "gradient steps": ("learner", "orchestrator"),
    "an evaluation": ("evaluator", "learner", "orchestrator"),
    "a candidate": ("leaderboard", "orchestrator", "learner", "orchestrator"),
}
_LEAVES = {
    ("worker", "collect rollout"): "a rollout",
    ("learner", "gradient steps"): "gradient steps",
    ("evaluator", "evaluate policies"): "an evaluation",
    ("leaderboard", "LeaderboardService/Exchange"): "a candidate",
}


def _missing_paths(spans: list[dict[str, Any]]) -> set[str]:
    """What has no span from which parents lead through these services up to CreateJob."""
    by_id = {span["span_id"]: span for span in spans}
    found = set()
    for span in spans:
        leaf = _LEAVES.get((span["service"], span["name"].rpartition(".")[2]))
        services, last = [span["service"]], span
        while (parent := by_id.get(last["parent_id"])) is not None:
            assert parent["trace_id"] == span["trace_id"]
            last = parent
            if last["service"] != services[-1]:
                services.append(last["service"])
        if (
            leaf is not None
            and last["name"].endswith("CreateJob")
            and tuple(services) == PATHS[leaf]
        ):
            found.add(leaf)
    return set(PATHS) - found


def _busy(job: Job) -> list[Any]:
    return [pod for pod in job.pods() if pod.fence]


def _looked_at(job: Job) -> Job:
    with suppress(PodracerError):
        job.refresh()
    return job


def _await(
    what: str, seconds: float, condition: Callable[[], bool], found: Callable[[], object]
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; {found()}"
        time.sleep(1.0)


def _image_bytes(name: str) -> int:
    command = ["docker", "image", "inspect", "--format", "{{.Size}}", name]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    )


def _pod_bytes(image: str) -> int:
    folders = [f"/opt/podracer/{name}" for name in ("dependencies", "code", "service")]
    command = [
        "docker",
        "run",
        "--rm",
        "--entrypoint",
        "du",
        image,
        "--bytes",
        "--total",
        "--summarize",
        *folders,
    ]
    *_, total = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60
    ).stdout.splitlines()
    return int(total.split()[0])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
