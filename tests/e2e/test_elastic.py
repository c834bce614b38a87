"""Pods join and leave in the middle of anything; nothing is lost or counted twice, and jobs share
by weight."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from podracer_client import Client
from support.endless_job import assert_ended_at, end_after, rows, write_job
from support.processes import Command, wait_until

pytestmark = pytest.mark.thorough


def pods_that_committed(folder: Path) -> set[str]:
    found = rows(folder, "SELECT DISTINCT leases.pod FROM leases JOIN checkpoints USING (fence)")
    return {pod.rpartition("/")[2] for (pod,) in found}


def working_learner(command: Command, folder: Path) -> psutil.Process:
    """The process of the pod that has leased last."""
    ((pod,),) = rows(folder, "SELECT pod FROM leases ORDER BY fence DESC LIMIT 1")
    log = f"{pod.rpartition('/')[2]}-learner.log"
    learners = command.services("podracer_learner")
    return next(each for each in learners if Path(f"/proc/{each.pid}/fd/2").readlink().name == log)


def test_one_pod_and_three_more_and_three_fewer_and_one_is_killed(podracer, run, tmp_path):
    command = podracer("run", write_job(tmp_path, "elastic", 16), "--json")
    wait_until((tmp_path / "runs" / "connection.json").exists, 60, "the services")
    with Client.connect(folder=tmp_path / "runs") as client:
        (job,) = wait_until(client.jobs, 60, "the job")
        wait_until(lambda: pods_that_committed(tmp_path), 60, "the first pod")
        assert run("scale", job.name, "--max", 4).lines == [f"{job.name}: 1 to 4 pods"]
        everyone = {f"fused-threads1-{number}" for number in range(4)}
        wait_until(lambda: pods_that_committed(tmp_path) == everyone, 60, "pods that join")
        capacity = run("capacity", "--json").events[0]
        assert (capacity["pods"], capacity["shares"][0]["max"]) == (4, 4)
        assert {pod.name.rpartition("/")[2] for pod in job.pods()} == everyone
        working_learner(command, tmp_path).send_signal(signal.SIGKILL)
        wait_until(
            lambda: rows(tmp_path, "SELECT 1 FROM pods WHERE restart_count > 0"), 60, "the loss"
        )
        assert run("scale", job.name, "--max", 1).lines == [f"{job.name}: 1 pod"]
        wait_until(
            lambda: len(command.services("podracer_learner")) == 1, 60, "three pods to leave"
        )
        limit = end_after(job, 32)
        assert command.wait(120) == 0, command.stderr
    assert_ended_at(limit, tmp_path, command.events[-1]["env_steps"])
    assert rows(tmp_path, "SELECT count(*) FROM works WHERE state = 'FAILED'") == [(0,)]
    kinds = {event["kind"] for event in command.events if event["event"] == "job_event"}
    assert {"JOB_CHANGED", "POD_RESTARTED", "ROUND_COMPLETED"} <= kinds


def test_two_jobs_share_one_pod_by_weight(up, run, tmp_path):
    server = up("--max-pods", 1)
    with Client.connect(folder=tmp_path / "runs") as client:
        heavy = client.submit(write_job(tmp_path, "heavy", 2, weight=2.0), job_id="heavy")
        light = client.submit(write_job(tmp_path, "light", 2), job_id="light")
        count = "SELECT count(*) FROM leases WHERE state = 'COMPLETED'"
        wait_until(lambda: rows(tmp_path, count)[0][0] >= 45, 120, "45 rounds")
        shares = {share["job"]: share for share in run("capacity", "--json").events[0]["shares"]}
        used = [shares[job.name]["device_seconds"] for job in (heavy, light)]
        assert 1.7 < used[0] / used[1] < 2.3, used
        assert len(server.services("podracer_learner")) == 1
        assert run("scale", "light", "--min", 3, "--max", 2).returncode == 2
        text = run("capacity").lines
        assert text[0] == "local pool: 1 pod, room for 0 more"
        assert text[-1] == "limit: pods: 1 at most (PODRACER_MAX_PODS)"

        (pod,) = server.services("podracer_learner")
        heavy.cancel()
        late = run("scale", "heavy", "--max", 2)
        assert late.returncode == 2
        assert "ended" in late.stderr
        assert "Traceback" not in late.stderr
        limit = end_after(light, 8)
        assert light.wait().progress.env_steps == limit
        assert [each.pid for each in server.services("podracer_learner")] == [pod.pid], (
            "one pod for both, never restarted"
        )
