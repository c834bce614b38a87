"""A pod reaches the object store by what its lease gives it: with keys of a session, or by signed
URLs."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import NotFound, PermissionRefused, PodracerError
from podracer_core.storage import ObjectStore, StoreAccess, StoreKeys, job_prefix, verify
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import bearer
from podracer_platform.storage import S3Settings, open_store
from support.s3_server import PROGRAMS, S3Server, each_program

LONG = evolution_pb2.Objective(max_env_steps=1_000_000_000)
PREFIX, OTHER = "some/prefix", "projects/default/jobs/other/"


@pytest.fixture(scope="module", params=each_program("minio", "rclone", "moto", "versitygw"))
def s3(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / request.param, program=request.param)
    server.start()
    yield server
    server.stop()


class Pod:
    """A learner that has no keys. Its calls to the store block, so they are made in a thread
    (`do`)."""

    def __init__(self, site: Any, learner: Any, url: str, s3: S3Server) -> None:
        self.learner, self.asked = learner, list[str]()
        lease, loop = learner.lease, asyncio.get_running_loop()
        self.own = job_prefix(lease.name.split("/")[1], lease.job_uid)

        def ask(method: str, key: str) -> StoreAccess:
            self.asked.append(f"{method} {key}" if key else "keys")
            kind = {"GET": "read", "PUT": "write"}[method]
            request = pod_pb2.GetStoreAccessRequest(
                lease=lease.name, fence=lease.fence, **({kind: key} if key else {})
            )
            call = site.client.pods.GetStoreAccess(request, metadata=bearer(lease.token))

            async def answer() -> pod_pb2.GetStoreAccessResponse:
                return await call

            access = asyncio.run_coroutine_threadsafe(answer(), loop).result(30)
            keys = access.keys
            return StoreAccess(
                seconds_from_duration(access.validity),
                StoreKeys(keys.access_key, keys.secret_key, keys.session_token)
                if access.HasField("keys")
                else None,
                access.url,
            )

        store = open_store(url, S3Settings(s3.endpoint, attempts=2), leased=True)
        store.check()
        self.store: ObjectStore = store.under(ask, self.own)
        learner.store = self.store

    async def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    async def commit(self, steps: int) -> agent_pb2.CheckpointReference:
        (agent,) = self.learner.lease.train.cohort.members
        member = await self.do(self.learner.member, agent, steps)
        request = pod_pb2.CommitCheckpointRequest(
            lease=self.learner.lease.name, fence=self.learner.lease.fence, members=[member]
        )
        await self.learner.pods.CommitCheckpoint(request, metadata=bearer(self.learner.lease.token))
        return member.checkpoint


@pytest.fixture
async def store_url(site: Any, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The orchestrator's store, which it has keys of."""
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    url = f"s3://bucket-{uuid.uuid4().hex[:8]}/{PREFIX}"
    await site.stop()
    await site.start(store=url)
    return url


async def leased(site: Any, store_url: str, s3: S3Server) -> Pod:
    evolution = evolution_pb2.Evolution(population=1, leaderboard_size=1)
    await site.create(objective=LONG, evolution=evolution)
    learner = site.learner(f"projects/default/pods/{uuid.uuid4().hex[:8]}")
    assert await learner.ask() is not None
    return Pod(site, learner, store_url, s3)


async def refused(call: Callable[[], Any]) -> str:
    """The reason why a call is refused."""
    with pytest.raises(PermissionRefused) as caught:
        await asyncio.to_thread(call)
    return caught.value.reason


async def test_checkpoints_are_written_committed_and_resumed(site, store_url, s3):
    pod = await leased(site, store_url, s3)
    reference = await pod.commit(100)
    gives_keys = s3.program is PROGRAMS["minio"]
    if gives_keys:
        assert pod.asked == ["keys"]
    await pod.learner.release()
    with pytest.raises(PodracerError):  # what is known may still serve; nothing new is given
        await pod.do(pod.store.put, f"{reference.prefix}late", b"x")
        await pod.do(pod.store.get, "projects/default/artifacts/x/content")
    assert await pod.learner.ask() is not None
    assert pod.learner.lease.train.cohort.members[0].resume.prefix == reference.prefix
    again = Pod(site, pod.learner, store_url, s3)
    await again.do(verify, again.store, reference.prefix, reference.manifest_sha256)
    assert (await again.do(again.store.stat, f"{reference.prefix}manifest.json")).size_bytes > 0
    large = bytes(range(256)) * 140_000  # of several parts
    prefix = f"{reference.prefix.rpartition('-')[0]}-{pod.learner.lease.fence}/"
    await again.do(again.store.put, f"{prefix}large", large)
    assert await again.do(again.store.get, f"{prefix}large") == large
    assert (
        b"".join(await again.do(lambda: list(again.store.read_chunks(f"{prefix}large", 1 << 20))))
        == large
    )
    with pytest.raises(NotFound):
        await again.do(again.store.get, f"{prefix}absent")
    assert not await again.do(again.store.exists, f"{prefix}absent")


async def test_a_lease_reaches_nothing_else(site, store_url, s3):
    pod = await leased(site, store_url, s3)
    reference = await pod.commit(100)
    root = open_store(store_url, s3.settings)
    root.put(f"{OTHER}agents/a/checkpoints/1-999/actor.safetensors", b"of another job")
    root.put("projects/default/artifacts/x/content", b"of the project")
    folder, fence = reference.prefix.rpartition("-")[0], pod.learner.lease.fence
    for key in (
        f"{folder}-{fence + 1}/actor.safetensors",
        f"{folder}-1{fence}/actor.safetensors",
        f"{pod.own}agents/a/{fence}",
        f"{OTHER}agents/a/checkpoints/1-{fence}/actor.safetensors",
        f"projects/other/jobs/{pod.learner.lease.job_uid}/agents/a/checkpoints/1-{fence}/x",
        "check/x",
    ):
        await refused(lambda key=key: pod.store.put(key, b"x"))
        assert not root.exists(key)
    for key in (
        f"{OTHER}agents/a/checkpoints/1-999/actor.safetensors",
        "projects/default/artifacts/x/content",
    ):
        assert await refused(lambda key=key: pod.store.get(key)) == "NOT_OF_LEASE"
        await refused(lambda key=key: pod.store.stat(key))
    await refused(lambda: pod.store.delete(f"{reference.prefix}manifest.json"))
    await refused(lambda: list(pod.store.list(pod.own)))
    await refused(lambda: list(pod.store.list()))
    assert root.exists(f"{reference.prefix}manifest.json")


async def test_keys_of_a_session_are_as_narrow_as_the_lease(site, store_url, s3):
    """Whoever has got hold of the keys asks the store itself, past all of our code."""
    if s3.program is not PROGRAMS["minio"]:
        pytest.skip("it gives no keys of a session")
    from minio import Minio
    from minio.error import S3Error

    pod = await leased(site, store_url, s3)
    reference = await pod.commit(100)
    lease, root = pod.learner.lease, open_store(store_url, s3.settings)
    root.put(f"{OTHER}x", b"of another job")
    request = pod_pb2.GetStoreAccessRequest(lease=lease.name, fence=lease.fence)
    access = await site.client.pods.GetStoreAccess(request, metadata=bearer(lease.token))
    assert access.validity.ToSeconds() == 900, (
        "a holder renews them, see tests/unit/storage/test_leased.py"
    )
    keys = access.keys
    given = {
        "access_key": keys.access_key,
        "secret_key": keys.secret_key,
        "session_token": keys.session_token,
    }
    client = Minio(s3.endpoint.removeprefix("http://"), **given, secure=False, region="us-east-1")
    bucket, own = store_url.split("/")[2], f"{PREFIX}/{reference.prefix}"
    assert client.get_object(bucket, f"{own}manifest.json").status == 200
    client.put_object(bucket, f"{own}x", io.BytesIO(b"x"), 1)
    beside = own.replace(f"-{lease.fence}/", f"-{lease.fence + 1}/")
    calls: list[Callable[[], Any]] = [
        lambda: client.put_object(bucket, f"{beside}x", io.BytesIO(b"x"), 1),
        lambda: client.put_object(bucket, f"{PREFIX}/{OTHER}x", io.BytesIO(b"x"), 1),
        lambda: client.put_object(bucket, "x", io.BytesIO(b"x"), 1),
        lambda: client.get_object(bucket, f"{PREFIX}/{OTHER}x"),
        lambda: client.remove_object(bucket, f"{own}manifest.json"),
        lambda: list(client.list_objects(bucket)),
        lambda: list(client.list_objects(bucket, f"{PREFIX}/{pod.own}", recursive=True)),
        lambda: list(client.list_buckets()),
        lambda: client.make_bucket("another-bucket"),
        lambda: client.delete_bucket_policy(bucket),
    ]
    for call in calls:
        with pytest.raises(S3Error) as caught:
            call()
        assert caught.value.code == "AccessDenied"


async def test_what_the_work_names_is_read_by_url(site, store_url, s3):
    """A checkpoint of another job that the agent starts from, and nothing beside it."""
    first = await leased(site, store_url, s3)
    reference = await first.commit(100)
    agent = first.learner.lease.train.cohort.members[0]
    root = open_store(store_url, s3.settings)
    beside = f"{first.own}agents/another/checkpoints/1-1/actor.safetensors"
    root.put(beside, b"of an agent that is not named")
    await first.learner.release()
    await site.jobs.CancelJob(name=first.learner.lease.job)
    site.board.parent = agent_pb2.Parent(agent=agent.name, checkpoint=reference)
    second = await leased(site, store_url, s3)
    await second.do(verify, second.store, reference.prefix, reference.manifest_sha256)
    assert any(each.startswith("GET projects/") for each in second.asked)
    assert await refused(lambda: second.store.get(beside)) == "NOT_OF_LEASE"
    await refused(lambda: second.store.put(f"{reference.prefix}actor.safetensors", b"x"))
