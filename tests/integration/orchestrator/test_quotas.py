"""What a project may have at most."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_core.errors import Exhausted, InvalidInput
from podracer_orchestrator.jobs.quotas import Quotas

LONG = evolution_pb2.Objective(max_duration={"seconds": 1000})


@pytest.fixture
async def site(site: Any) -> Any:
    await site.stop()
    site.settings["quotas"] = site.folder / "quotas.json"
    write(site, {"projects/default": {"jobs": 2, "pods": 2, "upload_bytes": 100}, "*": {"jobs": 1}})
    await site.start()
    return site


def write(site: Any, quotas: Any) -> None:
    path = site.folder / "quotas.json"
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(quotas))
    draft.replace(path)


async def create(site: Any, make_spec: Any, parent: str = "") -> job_pb2.Job:
    spec = make_spec(objective=LONG, pod=job_pb2.PodShape(members=1, min_count=1, max_count=4))
    return (await site.client.jobs.CreateJob(job_service_pb2.CreateJobRequest(parent=parent, spec=spec))).job


async def test_unfinished_jobs(site: Any, make_spec: Any) -> None:
    job = await create(site, make_spec)
    await create(site, make_spec)
    with pytest.raises(Exhausted, match="has 2 unfinished jobs of 2 allowed") as refused:
        await create(site, make_spec)
    assert refused.value.reason == "QUOTA_EXCEEDED"
    await site.client.jobs.CancelJob(job_service_pb2.CancelJobRequest(name=job.name))
    await create(site, make_spec)
    await create(site, make_spec, "projects/other")
    with pytest.raises(Exhausted, match="the project other has 1 unfinished jobs"):
        await create(site, make_spec, "projects/other")


async def test_pods_at_work_of_all_jobs_together(site: Any, make_spec: Any) -> None:
    await create(site, make_spec)
    await create(site, make_spec)
    learners = [site.learner(f"projects/default/pods/pod-{index}") for index in range(3)]
    assert [await learner.ask(0.2) is not None for learner in learners] == [True, True, False]
    await learners[0].complete(train=learners[0].train_result(steps=10))
    assert await learners[2].ask(2.0) is not None
    capacity = await site.client.jobs.GetCapacity(job_service_pb2.GetCapacityRequest())
    assert sum(share.wanted_count for share in capacity.shares) == 2


async def test_bytes_of_uploads_and_a_file_that_changes(site: Any) -> None:
    async def upload(content: bytes) -> None:
        header = artifact_pb2.UploadHeader(
            kind=artifact_pb2.ARTIFACT_KIND_REPORT,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
        )
        parts = [artifact_pb2.UploadRequest(header=header), artifact_pb2.UploadRequest(data=content)]
        await site.client.artifacts.Upload(iter(parts))

    await upload(b"a" * 60)
    await upload(b"a" * 60)  # it is there already
    with pytest.raises(Exhausted, match="60 bytes of uploads; 60 more"):
        await upload(b"b" * 60)
    write(site, {"projects/default": {"upload_bytes": 200}})
    await upload(b"b" * 60)
    (site.folder / "quotas.json").write_text("{")
    with pytest.raises(Exhausted, match="exceed its limit of 200"):
        await upload(b"c" * 90)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected an object with an entry for each name"),
        ("{", "is not valid JSON"),
        ('{"default": {}}', "'default' is not a project: expected projects/"),
        ('{"*": 3}', "expected an object with jobs, pods, upload_bytes"),
        ('{"*": {"job": 3}}', "'job' is unknown, expected jobs, pods, upload_bytes"),
        ('{"*": {"jobs": -1}}', "jobs is -1, expected a whole number of 0 or more"),
        ('{"*": {"jobs": true}}', "jobs is True, expected a whole number"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "quotas.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as refused:
        Quotas(path)
    assert str(path) in refused.value.message
    with pytest.raises(InvalidInput, match="cannot be read"):
        Quotas(tmp_path / "absent")
