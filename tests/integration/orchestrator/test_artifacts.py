"""Uploads and downloads, in pieces, with checksums."""

from __future__ import annotations

import hashlib

import pytest

from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import (
    AlreadyExists,
    DataCorrupted,
    InvalidInput,
    NotFound,
    PreconditionFailed,
)

CONTENT = bytes(range(256)) * 10_000  # 2.5 MB: three pieces


def requests(content=CONTENT, announced=None, piece=1 << 20, **header):
    announced = content if announced is None else announced
    values = {
        "kind": artifact_pb2.ARTIFACT_KIND_CODE,
        "size_bytes": len(announced),
        "sha256": hashlib.sha256(announced).hexdigest(),
    }
    yield artifact_pb2.UploadRequest(header=artifact_pb2.UploadHeader(**{**values, **header}))
    for first in range(0, len(content), piece):
        yield artifact_pb2.UploadRequest(data=content[first : first + piece])


async def download(site, name, *paths):
    files, artifact = {}, None
    async for response in site.artifacts.Download(name=name, paths=paths):
        match response.WhichOneof("part"):
            case "artifact":
                artifact = response.artifact
            case "file":
                current = response.file.path
                files[current] = b""
            case "data":
                assert len(response.data) <= 1 << 20
                files[current] += response.data
    return artifact, files


async def test_what_was_uploaded_comes_back(site):
    stored = (await site.client.artifacts.Upload(requests(artifact_id="my-code"))).artifact
    assert stored.name == "projects/default/artifacts/my-code"
    artifact, files = await download(site, stored.name)
    assert list(files.values()) == [CONTENT]
    assert artifact.sha256 == hashlib.sha256(CONTENT).hexdigest()
    again = (await site.client.artifacts.Upload(requests(artifact_id="my-code"))).artifact
    assert again == stored
    with pytest.raises(AlreadyExists):
        await site.client.artifacts.Upload(requests(content=b"other", artifact_id="my-code"))
    listed = (await site.artifacts.ListArtifacts()).artifacts
    assert [each.name for each in listed] == [stored.name]
    await site.artifacts.DeleteArtifact(name=stored.name)
    with pytest.raises(NotFound):
        await download(site, stored.name)
    assert not list(site.store.list("projects/default/artifacts/"))


@pytest.mark.parametrize(
    "bad",
    [
        {"announced": CONTENT + b"more"},
        {"announced": CONTENT[:-1]},
        {"content": b"x" + CONTENT[1:], "announced": CONTENT},
        {"sha256": "nonsense"},
        {"kind": artifact_pb2.ARTIFACT_KIND_CHECKPOINT},
        {"piece": (1 << 20) + 1},
        {"artifact_id": "../etc"},
    ],
)
async def test_a_wrong_upload_is_refused_and_leaves_nothing(site, bad):
    with pytest.raises(InvalidInput):
        await site.client.artifacts.Upload(requests(**bad))
    assert not list(site.store.list("projects/default/artifacts/"))


async def test_checkpoints_are_downloaded_by_name_and_the_best_by_that_word(site):
    job = await site.create()
    learner = site.learner()
    lease = await learner.ask()
    best_name = f"{job.name}/checkpoints/best"
    with pytest.raises(NotFound, match="no candidate"):
        await download(site, best_name)
    await learner.complete(train=learner.train_result(steps=10, score=480.0))
    artifact, files = await download(site, best_name)
    agent = lease.train.cohort.members[0].name
    assert artifact.name == f"{agent}/checkpoints/10-{lease.fence}"
    assert set(files) == {"actor.safetensors", "manifest.json"}
    assert hashlib.sha256(files["manifest.json"]).hexdigest() == artifact.sha256
    _, only = await download(site, artifact.name, "manifest.json")
    assert set(only) == {"manifest.json"}
    assert (
        len(
            (
                await site.artifacts.ListArtifacts(
                    parent=job.name, kind=artifact_pb2.ARTIFACT_KIND_CHECKPOINT
                )
            ).artifacts
        )
        == 2
    )
    with pytest.raises(NotFound):
        await download(site, artifact.name, "passwords")
    with pytest.raises(PreconditionFailed):
        await site.artifacts.DeleteArtifact(name=artifact.name)
    await learner.confirm(480.0)
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert (await download(site, best_name))[0] == artifact


async def test_an_altered_object_is_data_loss(site):
    await site.create()
    learner = site.learner()
    lease = await learner.ask()
    await learner.commit(steps=10)
    agent = lease.train.cohort.members[0]
    reference = learner.checkpoint(agent.name, 10)
    site.store.put(f"{reference.prefix}actor.safetensors", b"altered")
    with pytest.raises(DataCorrupted):
        await download(site, f"{agent.name}/checkpoints/10-{lease.fence}")
