"""`podracer scale` and `podracer capacity`."""

from __future__ import annotations

import json

import pytest
from google.protobuf.duration_pb2 import Duration

from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.command import capacity_text, pod_count_text
from podracer_client.display import capacity_json
from podracer_client.jobs import Job
from podracer_core.errors import InvalidInput


class FakeJobs:
    """Remembers what it is asked to change."""

    def __init__(self) -> None:
        self.requests: list[job_service_pb2.UpdateJobRequest] = []

    def UpdateJob(self, request):
        self.requests.append(request)
        job = job_pb2.Job(name=request.name)
        job.spec.pod.CopyFrom(job_pb2.PodShape(min_count=1, max_count=4))
        return job_service_pb2.UpdateJobResponse(job=job)


class FakeClient:
    def __init__(self) -> None:
        self.job_service = FakeJobs()


@pytest.fixture
def job() -> Job:
    return Job(FakeClient(), job_pb2.Job(name="projects/default/jobs/j"))


def test_scaling_changes_only_what_is_said(job):
    assert job.scale(most=4).message.spec.pod.max_count == 4
    job.scale(least=2, most=4)
    first, second = job._servers.job_service.requests
    assert list(first.update_mask.paths) == ["pod.max_count"]
    assert list(second.update_mask.paths) == ["pod.min_count", "pod.max_count"]
    assert (second.spec.pod.min_count, second.spec.pod.max_count) == (2, 4)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "say how many pods"),
        ({"most": 0}, "max: is 0, expected 1 to 4096"),
        ({"most": 10**30}, "expected 1 to 4096"),
        ({"least": -1, "most": 2}, "min: is -1"),
    ],
)
def test_numbers_that_cannot_be_never_leave(job, counts, message):
    with pytest.raises(InvalidInput, match=message):
        job.scale(**counts)
    assert not job._servers.job_service.requests


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((1, 1, 0), "1 pod"),
        ((1, 4, 1), "1 to 4 pods"),
        ((1, 1, 3), "1 team of 3 pods"),
        ((1, 2, 3), "1 to 2 teams of 3 pods"),
    ],
)
def test_what_is_scaled_is_named(counts, text):
    assert pod_count_text(*counts) == text


@pytest.fixture
def capacity() -> job_service_pb2.GetCapacityResponse:
    gib = 1 << 30
    found = job_service_pb2.GetCapacityResponse(
        backend="local",
        total=job_pb2.Resources(cpu=2, memory_bytes=16 * gib),
        reserved=job_pb2.Resources(cpu=2, memory_bytes=gib),
        used=job_pb2.Resources(cpu=1.234, memory_bytes=4 * gib),
        pod_count=2,
        limit="cores: 0 of 2 free, a pod needs 1",
    )
    found.shares.add(
        job="projects/default/jobs/pendulum",
        weight=2,
        pod_count=1,
        wanted_count=2,
        min_count=1,
        max_count=4,
        used=Duration(seconds=12, nanos=340_000_000),
    )
    return found


def test_capacity_is_two_tables_and_a_line(capacity):
    text = capacity_text(capacity)
    assert text.startswith("local pool: 2 pods, room for 0 more\n")
    assert "cores          2         2     1.23" in text
    assert "memory  16.0 GiB   1.0 GiB  4.0 GiB" in text
    assert "pendulum       2        1        2    1 to 4      12.3" in text
    assert text.endswith("limit: cores: 0 of 2 free, a pod needs 1\n")


def test_capacity_as_json(capacity):
    values = json.loads(json.dumps(capacity_json(capacity)))
    assert (values["pods"], values["free_pods"], values["limit"]) == (2, 0, capacity.limit)
    assert values["used"] == {"cores": 1.234, "memory_bytes": 4 << 30, "gpus": 0}
    assert values["shares"][0]["device_seconds"] == 12.34


def test_a_pool_that_knows_no_machine():
    found = job_service_pb2.GetCapacityResponse(
        backend="static", pod_count=1, free_pod_count=-1, limit=""
    )
    assert capacity_text(found) == "static pool: 1 pod\n\nevery job has the pods that it asks for\n"
    values = capacity_json(found)
    assert (values["free_pods"], values["total"]) == (None, None)
