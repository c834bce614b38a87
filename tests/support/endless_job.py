"""A small job without an end: faults come while it trains, then it is given a budget to end at."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from podracer.orchestrator.v1 import job_service_pb2
from podracer_client import Client
from podracer_client.jobs import Job
from support.processes import wait_until

UPDATE = 1_024
"""Environment steps of an update of one agent."""

JOB = """
name: {name}
environment: {{id: CartPole-v1}}
objective: {{max_env_steps: 1_000_000_000}}
search: {{algorithms: [ppo], space: {{horizon: 32, minibatch_size: 256, epochs: 2}}}}
evolution: {{population: 4, leaderboard_size: 2, round: {{env_steps: {round}}}}}
pod: {{count: 1, members: {members}, envs_per_member: 32, layout: {layout}, resources: {{cpu: 0.5}}}}
evaluation: {{episodes: 8}}
weight: {weight}
"""


def write_job(
    folder: Path,
    name: str,
    updates: int,
    *,
    members: int = 1,
    layout: str = "fused",
    weight: float = 1.0,
) -> Path:
    """A job file whose rounds have so many updates."""
    text = JOB.format(
        name=name, weight=weight, round=updates * UPDATE, members=members, layout=layout
    )
    (folder / f"{name}.yaml").write_text(text)
    return folder / f"{name}.yaml"


def rows(folder: Path, query: str, service: str = "orchestrator") -> list[tuple[Any, ...]]:
    """Of a service's database in the state folder `folder`/runs."""
    with sqlite3.connect(
        f"file:{folder}/runs/{service}.sqlite?mode=ro", uri=True, timeout=60
    ) as connection:
        return connection.execute(query).fetchall()


def committed(folder: Path) -> int:
    """Environment steps that the orchestrator has acknowledged."""
    try:
        return int(rows(folder, "SELECT coalesce(max(env_steps), 0) FROM jobs")[0][0])
    except sqlite3.OperationalError:  # the database is not there yet
        return 0


def wait_for_rounds(folder: Path, count: int, what: str) -> None:
    """Until so many more rounds than now are completed; committed steps never go back meanwhile."""
    seen = [committed(folder)]
    query = "SELECT count(*) FROM leases WHERE state = 'COMPLETED'"
    target = rows(folder, query)[0][0] + count

    def have_come() -> bool:
        seen.append(committed(folder))
        return bool(rows(folder, query)[0][0] >= target)

    wait_until(have_come, 120, what)
    assert seen == sorted(seen), "committed steps went back"


def end_after(job: Job, updates: int) -> int:
    """Give a running job a budget of so many more updates than are under way; returns the
    budget."""
    progress = job.refresh().progress
    limit = progress.env_steps + progress.reserved_env_steps + updates * UPDATE
    request = job_service_pb2.UpdateJobRequest(name=job.name)
    request.spec.objective.max_env_steps = limit
    request.update_mask.paths.append("objective.max_env_steps")
    job._servers.job_service.UpdateJob(request)
    return limit


def assert_ended_at(limit: int, folder: Path, told: int, *, members: int = 1) -> None:
    """Every counter of the only job says the same as the command, at `limit` or at most an update
    later: a rollout that a leaving pod has cut moves the later ones, and the last one is
    finished."""
    assert limit <= told < limit + members * UPDATE
    assert rows(folder, "SELECT env_steps FROM jobs") == [(told,)]
    assert rows(folder, "SELECT sum(env_steps) FROM work_members") == [(told,)]
    assert rows(folder, "SELECT sum(env_steps) FROM rounds", "leaderboard") == [(told,)]


def end_running(folder: Path, updates: int) -> int:
    """`end_after` for the only job of the services that run in `folder`."""
    with Client.connect(folder=folder / "runs") as client:
        (job,) = client.jobs()
        return end_after(job, updates)
