"""Pods join and leave in the middle of anything; nothing is lost or counted twice, and jobs share by weight."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from podracer.orchestrator.v1 import job_service_pb2
from podracer_client import Client
from podracer_client.job import Job
from support.processes import Command, wait_until

# One agent a pod, rounds of steps.
UPDATE = 1_024
JOB = """
name: {name}
environment: {{id: CartPole-v1}}
objective: {{max_env_steps: 1_000_000_000}}
search: {{algorithms: [ppo], space: {{horizon: 32, minibatch_size: 256, epochs: 2}}}}
evolution: {{population: 4, leaderboard_size: 2, round: {{env_steps: {round}}}}}
pod: {{count: 1, members: 1, envs_per_member: 32, resources: {{cpu: 0.5}}}}
evaluation: {{episodes: 8}}
weight: {weight}
"""


def write_job(folder: Path, name: str, updates: int, weight: float = 1.0) -> Path:
    """A job file whose rounds have so many updates."""
    (folder / f"{name}.yaml").write_text(JOB.format(name=name, weight=weight, round=updates * UPDATE))
    return folder / f"{name}.yaml"


def rows(folder: Path, query: str, service: str = "orchestrator") -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{folder}/runs/{service}.sqlite?mode=ro", uri=True, timeout=10) as connection:
        return connection.execute(query).fetchall()


def pods_that_committed(folder: Path) -> set[str]:
    found = rows(folder, "SELECT DISTINCT leases.pod FROM leases JOIN checkpoints USING (fence)")
    return {pod.rpartition("/")[2] for (pod,) in found}


def working_learner(command: Command, folder: Path) -> psutil.Process:
    """The process of the pod that has leased last."""
    ((pod,),) = rows(folder, "SELECT pod FROM leases ORDER BY fence DESC LIMIT 1")
    return next(each for each in command.services("podracer_learner") if each.environ()["PODRACER_POD"] == pod)


def end_after(job: Job, updates: int) -> int:
    """Give a running job a budget of so many more updates than are under way; what it has to end at, exactly."""
    progress = job.refresh().progress
    limit = progress.env_steps + progress.reserved_env_steps + updates * UPDATE
    request = job_service_pb2.UpdateJobRequest(name=job.name)
    request.spec.objective.max_env_steps = limit
    request.update_mask.paths.append("objective.max_env_steps")
    job._client.job_service.UpdateJob(request)
    return limit


def test_one_pod_and_three_more_and_three_fewer_and_one_is_killed(
    podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path
) -> None:
    command = podracer("run", write_job(tmp_path, "elastic", 16), "--json")
    wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
    with Client.connect(folder=tmp_path / "runs") as client:
        (job,) = wait_until(client.jobs, 30, "the job")
        wait_until(lambda: pods_that_committed(tmp_path), 60, "the first pod")
        assert run("scale", job.name, "--max", 4).lines == [f"{job.name}: 1 to 4 pods"]
        everyone = {f"fused-threads1-{number}" for number in range(4)}
        wait_until(lambda: pods_that_committed(tmp_path) == everyone, 60, "pods that join")
        capacity = run("capacity", "--json").events[0]
        assert (capacity["pods"], capacity["shares"][0]["max"]) == (4, 4)
        assert {pod.name.rpartition("/")[2] for pod in job.pods()} == everyone
        working_learner(command, tmp_path).send_signal(signal.SIGKILL)
        wait_until(lambda: rows(tmp_path, "SELECT 1 FROM pods WHERE restart_count > 0"), 30, "the loss")
        assert run("scale", job.name, "--max", 1).lines == [f"{job.name}: 1 pod"]
        wait_until(lambda: len(command.services("podracer_learner")) == 1, 60, "three pods to leave")
        limit = end_after(job, 32)
        assert command.wait(60) == 0, command.stderr
    assert command.events[-1]["env_steps"] == limit
    assert rows(tmp_path, "SELECT env_steps FROM jobs") == [(limit,)]
    assert rows(tmp_path, "SELECT sum(env_steps) FROM work_members") == [(limit,)]
    assert rows(tmp_path, "SELECT sum(env_steps) FROM rounds", "leaderboard") == [(limit,)]
    assert rows(tmp_path, "SELECT count(*) FROM works WHERE state = 'FAILED'") == [(0,)]
    kinds = {event["kind"] for event in command.events if event["event"] == "job_event"}
    assert {"JOB_CHANGED", "POD_RESTARTED", "ROUND_COMPLETED"} <= kinds


@pytest.fixture
def up(podracer: Callable[..., Command], tmp_path: Path) -> Command:
    command = podracer("up", "--listen", "127.0.0.1:0", "--leaderboard-listen", "127.0.0.1:0", "--max-pods", 1)
    wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
    return command


def test_two_jobs_share_one_pod_by_weight(up: Command, run: Callable[..., Command], tmp_path: Path) -> None:
    with Client.connect(folder=tmp_path / "runs") as client:
        heavy = client.submit(write_job(tmp_path, "heavy", 2, 2.0), job_id="heavy")
        light = client.submit(write_job(tmp_path, "light", 2, 1.0), job_id="light")
        count = "SELECT count(*) FROM leases WHERE state = 'COMPLETED'"
        wait_until(lambda: rows(tmp_path, count)[0][0] >= 45, 120, "45 rounds")
        shares = {share["job"]: share for share in run("capacity", "--json").events[0]["shares"]}
        used = [shares[job.name]["device_seconds"] for job in (heavy, light)]
        assert 1.7 < used[0] / used[1] < 2.3, used
        assert len(up.services("podracer_learner")) == 1
        assert run("scale", "light", "--min", 3, "--max", 2).process.returncode == 2
        text = run("capacity").lines
        assert text[0] == "local pool: 1 pod, room for 0 more"
        assert text[-1] == "limit: pods: 1 at most (PODRACER_MAX_PODS)"

        (pod,) = up.services("podracer_learner")
        heavy.cancel()
        late = run("scale", "heavy", "--max", 2)
        assert late.process.returncode == 2
        assert "ended" in late.stderr
        assert "Traceback" not in late.stderr
        limit = end_after(light, 8)
        assert light.wait().progress.env_steps == limit
        assert [each.pid for each in up.services("podracer_learner")] == [pod.pid], "one pod for both, never restarted"
