"""What a project may have at most."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import DeadlineExpired, Exhausted, InvalidInput
from podracer_orchestrator.api import artifact_service
from podracer_orchestrator.artifacts import uploads as uploads_module
from podracer_orchestrator.jobs import Quotas
from support.errors import raises
from support.processes import until

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
    return (await site.jobs.CreateJob(parent=parent, spec=spec)).job


async def test_unfinished_jobs(site, make_spec):
    job = await create(site, make_spec)
    await create(site, make_spec)
    with raises(Exhausted, "QUOTA_EXCEEDED", match="2 unfinished jobs; 1"):
        await create(site, make_spec)
    await site.jobs.CancelJob(name=job.name)
    await create(site, make_spec)
    await create(site, make_spec, "projects/other")
    with raises(Exhausted, "QUOTA_EXCEEDED", match="1 unfinished jobs"):
        await create(site, make_spec, "projects/other")


async def test_pods_at_work_of_all_jobs_together(site, make_spec):
    await create(site, make_spec)
    await create(site, make_spec)
    learners = [site.learner(f"projects/default/pods/pod-{index}") for index in range(3)]
    assert [await learner.ask(0.2) is not None for learner in learners] == [True, True, False]
    await learners[0].complete(train=learners[0].train_result(steps=10))
    assert await learners[2].ask(2.0) is not None
    capacity = await site.jobs.GetCapacity()
    assert sum(share.wanted_count for share in capacity.shares) == 2


def parts(content: bytes, **header: Any) -> list[artifact_pb2.UploadRequest]:
    values = {
        "kind": artifact_pb2.ARTIFACT_KIND_REPORT,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
    }
    head = artifact_pb2.UploadHeader(**{**values, **header})
    return [artifact_pb2.UploadRequest(header=head), artifact_pb2.UploadRequest(data=content)]


async def upload(site: Any, content: bytes, **header: Any) -> str:
    return (await site.client.artifacts.Upload(iter(parts(content, **header)))).artifact.name


def stored(site: Any) -> int:
    return sum(info.size_bytes for info in site.store.list("projects/default/artifacts/"))


async def test_bytes_of_uploads_and_a_file_that_changes(site, caplog):
    await upload(site, b"a" * 60)
    await upload(site, b"a" * 60)  # it is there already
    with raises(Exhausted, "QUOTA_EXCEEDED", match="uploads; 60"):
        await upload(site, b"b" * 60)
    write(site, {"projects/default": {"upload_bytes": 200}})
    await upload(site, b"b" * 60)
    (site.folder / "quotas.json").write_text("{")
    with raises(Exhausted, "QUOTA_EXCEEDED", match="exceed"):
        await upload(site, b"c" * 90)
    assert "keeping the former content of" in caplog.text


async def test_a_request_id_stores_its_own_content_only(site):
    first = await upload(site, b"x", artifact_id="small", request_id="r")
    assert await upload(site, b"x", artifact_id="small", request_id="r") == first
    for number in range(5):
        with raises(InvalidInput, "REQUEST_ID_REUSED", field="header.request_id"):
            await upload(site, b"%d" % number * 50, artifact_id=f"e{number}", request_id="r")
    with pytest.raises(InvalidInput, match="request_id: "):
        await upload(site, b"x", artifact_id="other", request_id="r")
    assert stored(site) == 1


class OpenUpload:
    """An upload whose last byte does not come, and how far the server has read it."""

    def __init__(self, site: Any, content: bytes) -> None:
        self.was_read, self._end = asyncio.Event(), asyncio.Event()
        self.answer = asyncio.ensure_future(site.client.artifacts.Upload(self._parts(content)))

    async def _parts(self, content: bytes) -> Any:
        head, _ = parts(content)
        yield head
        self.was_read.set()
        await self._end.wait()
        yield artifact_pb2.UploadRequest(data=content)

    async def finish(self) -> None:
        self._end.set()
        await self.answer


async def test_uploads_in_progress_count(site):
    uploads = site.server.orchestrator.uploads
    held = OpenUpload(site, b"a" * 60)
    await until(lambda: uploads.in_progress("default") == (60, 1))
    for _ in range(3):
        with raises(Exhausted, "QUOTA_EXCEEDED", match="120 more exceed"):
            await upload(site, b"b" * 60)
    await upload(site, b"c" * 40)
    await held.finish()
    assert stored(site) == 100
    assert uploads.in_progress("default") == (0, 0)


@pytest.mark.parametrize("limit", [("PROJECT_BYTES", 50), ("PROJECT_UPLOADS", 1)])
async def test_uploads_wait_for_room_and_do_not_hold_up_others(site, monkeypatch, limit):
    for name, value in (limit, ("ALL_BYTES", 80)):
        monkeypatch.setattr(uploads_module, name, value)
    uploads = site.server.orchestrator.uploads
    held = OpenUpload(site, b"a" * 40)
    await until(lambda: uploads.in_progress("default") == (40, 1))
    waiting = asyncio.ensure_future(upload(site, b"b" * 30))
    await until(lambda: uploads.in_progress("default") == (70, 2))
    # while those of `default` are in progress
    await upload(site, b"c" * 40, parent="projects/other")
    assert not waiting.done()
    await held.finish()
    await waiting
    monkeypatch.setattr(uploads_module, "WAIT_S", 0.01)
    held = OpenUpload(site, b"d" * 20)
    await until(lambda: uploads.in_progress("default") == (20, 1))
    write(site, {"projects/default": {}})
    with raises(Exhausted, "UPLOADS_BUSY"):
        await upload(site, b"e" * 45)
    await held.finish()


@pytest.mark.parametrize("how", ["idle", "slow"])
async def test_an_upload_without_progress_is_given_up(site, monkeypatch, how):
    if how == "idle":
        monkeypatch.setattr(uploads_module, "IDLE_S", 0.05)
    else:
        monkeypatch.setattr(artifact_service, "IDLE_S", 0.0)
        monkeypatch.setattr(artifact_service, "SLOWEST_BYTES_PER_S", 1200)
    with raises(DeadlineExpired, "UPLOAD_SLOW"):
        await OpenUpload(site, b"a" * 60).answer
    assert site.server.orchestrator.uploads.in_progress("default") == (0, 0)


async def test_what_a_project_keeps_is_counted(site, make_spec):
    write(
        site, {"*": {"artifacts": 2, "stored_bytes": 50, "ended_jobs": 1, "forks": 0, "aliases": 0}}
    )
    await upload(site, b"")
    await upload(site, b"a" * 30)
    with raises(Exhausted, "QUOTA_EXCEEDED", match="2 uploads; 1"):
        await upload(site, b"b")
    with raises(Exhausted, "QUOTA_EXCEEDED", match="checkpoints; 30"):
        await upload(site, b"c" * 30)
    job = await create(site, make_spec)
    learner = site.learner()
    await learner.ask()
    await learner.commit(10)
    member = learner.lease.train.cohort.members[0].name
    with raises(Exhausted, "QUOTA_EXCEEDED", match="uploads"):
        await create(site, make_spec)
    write(site, {"*": {"ended_jobs": 1, "forks": 0, "aliases": 0}})
    with raises(Exhausted, "QUOTA_EXCEEDED", match="0 forked agents"):
        await site.jobs.ForkAgent(name=member)
    with pytest.raises(Exhausted, match="has 0 aliases"):
        checkpoint = f"{member}/checkpoints/10-{learner.lease.fence}"
        await site.jobs.PromotePolicy(job=job.name, policy=checkpoint)
    await site.jobs.CancelJob(name=job.name)
    with raises(Exhausted, "QUOTA_EXCEEDED", match="1 ended jobs; 1"):
        await create(site, make_spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected an object with an entry for each name"),
        ("{", "is not valid JSON"),
        ('{"default": {}}', "'default' is not a project: expected projects/"),
        ('{"*": 3}', "expected an object with jobs, pods, upload_bytes, "),
        ('{"*": {"job": 3}}', "'job' is unknown, expected jobs, pods, upload_bytes, "),
        ('{"*": {"jobs": -1}}', "jobs is -1, expected a whole number of 0 or more"),
        ('{"*": {"jobs": true}}', "jobs is True, expected a whole number"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, text, message):
    path = tmp_path / "quotas.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as refused:
        Quotas(path)
    assert str(path) in refused.value.message
    with raises(InvalidInput, "INVALID_SETTING"):
        Quotas(tmp_path / "absent")
