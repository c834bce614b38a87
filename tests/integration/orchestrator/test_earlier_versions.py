"""A name that stands for other content from now on, and what the jobs keep that had the former."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from sqlalchemy import select

from podracer.common.v1 import environment_pb2, tensor_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer_core.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from podracer_orchestrator.tables import JobFileRow, JobRow
from support.errors import raises

NAME = "projects/default/artifacts/prices"
FIRST, SECOND = b"ticker,time\nA,1\n", b"ticker,time\nA,1\nA,2\n"


@pytest.fixture
async def site(site: Any) -> Any:
    """Nothing is too young to be deleted."""
    await site.restart(collect_after=0.0)
    return site


async def upload(site: Any, content: bytes, **changes: Any) -> artifact_pb2.Artifact:
    header = artifact_pb2.UploadHeader(
        artifact_id="prices",
        kind=artifact_pb2.ARTIFACT_KIND_DATA_SET,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        replace=True,
    )
    header.MergeFrom(artifact_pb2.UploadHeader(**changes))

    def requests() -> Any:
        yield artifact_pb2.UploadRequest(header=header)
        yield artifact_pb2.UploadRequest(data=content)

    return (await site.client.artifacts.Upload(requests())).artifact


async def download(site: Any, name: str) -> bytes:
    return b"".join([response.data async for response in site.artifacts.Download(name=name)])


async def create_job(site: Any, artifact: artifact_pb2.Artifact) -> Any:
    reference = tensor_pb2.ObjectReference(
        key=artifact.uri, sha256=artifact.sha256, size_bytes=artifact.size_bytes, name="prices.csv"
    )
    environment = environment_pb2.EnvironmentSpec(id="StockTrading-v0")
    return await site.create(environment=environment, data={"table": reference})


async def names(site: Any) -> list[str]:
    response = await site.artifacts.ListArtifacts()
    return sorted(artifact.name for artifact in response.artifacts)


def objects(site: Any) -> list[str]:
    return sorted(info.key for info in site.store.list("projects/default/artifacts/"))


def earlier(content: bytes) -> str:
    return f"{NAME}.{hashlib.sha256(content).hexdigest()[:16]}"


async def test_a_job_keeps_what_it_was_given_until_it_is_deleted(site):
    first = await upload(site, FIRST)
    job = await create_job(site, first)
    second = await upload(site, SECOND)
    assert second.name == first.name == NAME
    assert await download(site, NAME) == SECOND
    assert await names(site) == [NAME, earlier(FIRST)]
    await site.jobs.CollectCheckpoints()
    assert await download(site, earlier(FIRST)) == FIRST
    lease = await site.learner(environments=["StockTrading-v0"]).ask()
    assert lease.inspect.environment.data["table"].key == first.uri
    assert site.store.get(first.uri) == FIRST
    with raises(PreconditionFailed, "ARTIFACT_IN_USE"):
        await site.artifacts.DeleteArtifact(name=earlier(FIRST))
    await site.artifacts.DeleteArtifact(name=NAME)
    await site.jobs.CancelJob(name=job.name)
    await site.jobs.DeleteJob(name=job.name)
    await site.jobs.CollectCheckpoints()
    assert (await names(site), objects(site)) == ([], [])


async def test_who_needs_the_name_alone_does_not_keep_its_earlier_content(site):
    await upload(site, FIRST)
    watcher = await site.create()

    def watch(session: Any) -> None:
        uid = session.scalars(
            select(JobRow.uid).where(JobRow.job_id == watcher.name.rpartition("/")[2])
        ).one()
        session.add(JobFileRow(job_uid=uid, project="default", artifact_id="prices"))

    await site.server.orchestrator.transactions.write(watch)
    second = await upload(site, SECOND)
    await site.jobs.CollectCheckpoints()
    assert (await names(site), objects(site)) == ([NAME], [second.uri])
    with raises(PreconditionFailed, "ARTIFACT_IN_USE"):
        await site.artifacts.DeleteArtifact(name=NAME)


async def test_what_no_job_needs_is_collected(site):
    await upload(site, FIRST)
    second = await upload(site, SECOND)
    assert len(objects(site)) == 2
    await site.jobs.CollectCheckpoints()
    assert (await names(site), objects(site)) == ([NAME], [second.uri])
    with pytest.raises(NotFound):
        await download(site, earlier(FIRST))


async def test_content_that_comes_back_shares_its_object_with_what_was_kept(site):
    job = await create_job(site, await upload(site, FIRST))
    await upload(site, SECOND)
    again = await upload(site, FIRST)
    assert await names(site) == sorted([NAME, earlier(FIRST), earlier(SECOND)])
    other = await create_job(site, again)
    await upload(site, SECOND)
    await site.jobs.CollectCheckpoints()
    assert await download(site, earlier(FIRST)) == FIRST
    for each in (job, other):
        await site.jobs.CancelJob(name=each.name)
        with pytest.raises(PreconditionFailed):
            await site.artifacts.DeleteArtifact(name=earlier(FIRST))
        await site.jobs.DeleteJob(name=each.name)
    await site.artifacts.DeleteArtifact(name=earlier(FIRST))
    await site.jobs.CollectCheckpoints()
    assert len(objects(site)) == 1
    assert await download(site, NAME) == SECOND


async def test_without_replace_and_of_another_kind_it_is_refused(site):
    await upload(site, FIRST)
    with pytest.raises(AlreadyExists, match="kind DATA_SET"):
        await upload(site, SECOND, kind=artifact_pb2.ARTIFACT_KIND_REPORT)
    header = {
        "artifact_id": "prices",
        "kind": artifact_pb2.ARTIFACT_KIND_DATA_SET,
        "size_bytes": len(SECOND),
    }
    plain = artifact_pb2.UploadHeader(**header, sha256=hashlib.sha256(SECOND).hexdigest())
    with pytest.raises(AlreadyExists, match="different content"):
        await site.client.artifacts.Upload(iter([artifact_pb2.UploadRequest(header=plain)]))
    plain.artifact_id, plain.replace = "", True
    with raises(InvalidInput, "INVALID_UPLOAD"):
        await site.client.artifacts.Upload(iter([artifact_pb2.UploadRequest(header=plain)]))
    assert await download(site, NAME) == FIRST
    assert await names(site) == [NAME]


async def test_the_same_request_again_changes_nothing(site):
    await upload(site, FIRST, request_id="one")
    second = await upload(site, SECOND, request_id="two")
    assert (await upload(site, SECOND, request_id="two")) == second
    await upload(site, FIRST, request_id="one")
    assert await download(site, NAME) == SECOND


async def test_killed_between_the_store_and_the_database(site, monkeypatch):
    """The name keeps its content; the unrecorded object is collected, also after a restart."""
    await upload(site, FIRST)

    def die(*_: Any, **__: Any) -> Any:
        raise Unavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr("podracer_orchestrator.artifacts.artifacts.store_upload", die)
        with pytest.raises(Unavailable):
            await upload(site, SECOND)
    assert len(objects(site)) == 2
    await site.restart()
    assert await download(site, NAME) == FIRST
    await site.jobs.CollectCheckpoints()
    assert len(objects(site)) == 1
    await upload(site, SECOND)
    assert await download(site, NAME) == SECOND


async def test_replacing_at_the_same_time_leaves_one_of_them_whole(site):
    contents = [b"%d" % number * 1000 for number in range(6)]
    await asyncio.gather(*(upload(site, content) for content in contents))
    await site.jobs.CollectCheckpoints()
    assert await download(site, NAME) in contents
    assert len(objects(site)) == 1


async def test_only_what_was_read_is_replaced(site):
    """Two have read the first content and add to it: the second is told, and nothing that was
    stored is lost."""
    first = await upload(site, FIRST)
    plain = artifact_pb2.UploadHeader(
        artifact_id="other", kind=artifact_pb2.ARTIFACT_KIND_DATA_SET, sha256=first.sha256
    )
    plain.replaced_sha256 = first.sha256
    with raises(InvalidInput, "INVALID_UPLOAD"):
        await site.client.artifacts.Upload(iter([artifact_pb2.UploadRequest(header=plain)]))
    second = await upload(site, SECOND, replaced_sha256=first.sha256)
    assert (await upload(site, SECOND, replaced_sha256=first.sha256)) == second, (
        "the same once more"
    )
    for content in (b"another", FIRST):
        with raises(
            Fenced, "ARTIFACT_CHANGED", match=f"{second.sha256[:16]}….* {first.sha256[:16]}"
        ):
            await upload(site, content, replaced_sha256=first.sha256)
    assert await download(site, NAME) == SECOND
    assert len(objects(site)) == 2, "what was refused is not kept"
    await site.artifacts.DeleteArtifact(name=NAME)
    with raises(Fenced, "ARTIFACT_CHANGED"):
        await upload(site, b"another", replaced_sha256=second.sha256)
    assert NAME not in await names(site)


async def test_one_of_those_who_replace_the_same_at_once_succeeds(site):
    first = await upload(site, FIRST)
    contents = [b"%d" % number * 1000 for number in range(6)]
    wishes = (upload(site, content, replaced_sha256=first.sha256) for content in contents)
    answers = await asyncio.gather(*wishes, return_exceptions=True)
    (won,) = [answer for answer in answers if not isinstance(answer, Exception)]
    assert all(isinstance(answer, Fenced) for answer in answers if answer is not won)
    assert hashlib.sha256(await download(site, NAME)).hexdigest() == won.sha256
