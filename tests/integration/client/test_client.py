"""The SDK against real gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer_client import Client
from podracer_core.errors import InvalidInput, NotFound, Unauthenticated
from podracer_platform.jobs import parse_job
from support.errors import raises

if TYPE_CHECKING:
    pass

JOB = (
    "name: cartpole\nenvironment: CartPole-v1\nobjective: {target_return: 475, max_duration: 1m}\n"
)


def finish(state: int) -> Callable[[job_pb2.Job], None]:
    def change(job: job_pb2.Job) -> None:
        job.state = state  # type: ignore[assignment]

    return change


def test_submit_wait_leaderboard_download(client, control_plane, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    job = client.submit(path)
    assert job.name == "projects/default/jobs/cartpole-0"
    control_plane.news.put(finish(job_pb2.JOB_STATE_SUCCEEDED))
    assert job.wait().state == "SUCCEEDED"
    assert job.ended
    assert job.leaderboard().candidates[0].rank == 1
    artifact = job.download_best(tmp_path / "best")
    assert artifact.name == f"{job.name}/checkpoints/best"
    assert (tmp_path / "best" / "actor.safetensors").stat().st_size == 1 << 20


def test_a_watch_outlives_its_connections(short_lived, control_plane):
    job, updates = short_lived.submit(parse_job(JOB)), []
    for update in job.watch():
        updates.append(update)
        if len(updates) == 3:  # one for each connection, as nothing else has happened
            control_plane.news.put(finish(job_pb2.JOB_STATE_SUCCEEDED))
    assert updates[-1].ended
    assert len(updates) >= 4


def test_a_request_id_makes_submitting_repeatable(client, control_plane):
    for _ in range(2):
        client.submit(parse_job(JOB))
    ids = [request.request_id for request in control_plane.requests]
    assert len({*ids}) == 2
    assert all(len(request_id) == 32 for request_id in ids)


def test_a_bad_job_never_reaches_the_server(client, control_plane, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB + "speed: 9\n")
    with pytest.raises(InvalidInput, match="speed"):
        client.submit(tmp_path / "job.yaml")
    assert control_plane.requests == []


def test_a_job_that_is_too_large_is_refused_before_it_is_sent(client, control_plane):
    spec = parse_job(JOB)
    large = replace(spec, environment=replace(spec.environment, kwargs={"table": "A" * 20_000_000}))
    with raises(InvalidInput, field="spec"):
        client.submit(large)
    assert not control_plane.requests


def test_listing_goes_over_all_pages(client, control_plane):
    for index in range(5):
        control_plane.add(
            job_pb2.JobSpec(display_name="j"),
            job_pb2.JOB_STATE_FAILED if index == 3 else job_pb2.JOB_STATE_RUNNING,
        )
    assert [job.name[-1] for job in client.jobs()] == ["4", "3", "2", "1", "0"]
    assert [job.name[-1] for job in client.jobs([job_pb2.JOB_STATE_FAILED])] == ["3"]
    assert [agent.name[-1] for agent in client.agents("projects/default/leaderboards/j")] == [
        "0",
        "1",
        "2",
    ]


def test_an_unknown_job(client):
    with pytest.raises(NotFound, match="nothing-here"):
        client.job("nothing-here")


def test_suspend_resume_cancel(client, control_plane):
    job = client.job(control_plane.add(job_pb2.JobSpec(display_name="j")).name)
    assert job.suspend().state == "SUSPENDED"
    assert job.resume().state == "RUNNING"
    assert job.cancel().state == "CANCELLED"
    assert job.refresh().ended


def test_a_wrong_token(connection, control_plane):
    with (
        Client(replace(connection, token=lambda: "guess")) as client,
        pytest.raises(Unauthenticated),
    ):
        client.job("j")
