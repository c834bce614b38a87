"""One project learns nothing of another: not from any answer, any error, any event, and not by
naming what it knows."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass

from podracer.common.v1 import evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2, job_service_pb2, pod_service_pb2
from podracer.policy.v1 import policy_service_pb2, policy_service_pb2_grpc
from podracer_core.errors import DeadlineExpired, PermissionRefused, PodracerError
from podracer_leaderboard.server import MIGRATIONS, LeaderboardConfig, create_leaderboard_server
from podracer_orchestrator.jobs import plan_of
from podracer_orchestrator.pool import Trouble, pods
from podracer_orchestrator.tables import JobRow, LeaseRow, PodRow, PodState
from podracer_platform.database import open_database
from podracer_platform.rpc import bearer, open_aio_channel
from podracer_policy.policies import Batcher, ServedPolicies, ServedPolicy
from podracer_policy.server import PolicyConfig, create_policy_server
from support.errors import raises
from support.new_database import new_database
from support.policies import random_policy
from support.random_messages import RandomMessages

TOKENS = {"a": "token-of-a", "rival": "token-of-rival"}
SECRET = "rival"
"""In every name of the other project and of all that it has."""
TRIES = 60
LONG = evolution_pb2.Objective(target_return=1e9, max_env_steps=1_000_000_000)
BOX = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)


@pytest.fixture
async def board(site: Any) -> AsyncIterator[str]:
    """A real leaderboard in place of the played one; its address."""
    for role, lines in (
        ("client", "\n".join(f"{token} projects/{project}" for project, token in TOKENS.items())),
    ):
        path = site.folder / "tokens" / role
        path.write_text(f"{lines}\n{path.read_text()}")
    database = new_database(site.folder / "leaderboard.sqlite", MIGRATIONS)
    config = LeaderboardConfig(tokens=site.folder / "tokens", database=database)
    async with (
        open_database(database, MIGRATIONS) as opened,
        await create_leaderboard_server(config, opened) as server,
    ):
        await site.stop()
        await site.start(leaderboard=server.address)
        yield server.address
        await site.stop()


async def create(site: Any, project: str, name: str, make_spec: Any) -> job_pb2.Job:
    spec = make_spec(display_name=name, objective=LONG)
    return (await site.jobs.CreateJob(parent=f"projects/{project}", job_id=name, spec=spec)).job


async def trained(site: Any, project: str, name: str, make_spec: Any, make_evaluation: Any) -> Any:
    """A learner that holds a lease of the project's new job and has committed a checkpoint that is
    the job's best."""
    await create(site, project, name, make_spec)
    learner = site.learner(f"projects/{project}/pods/{name}-{uuid.uuid4().hex[:6]}")
    lease = await learner.ask()
    assert lease is not None and lease.job == f"projects/{project}/jobs/{name}"
    await learner.commit(10)
    agent = lease.train.cohort.members[0].name
    learner.best = make_evaluation(agent, 9.0, checkpoint=learner.checkpoint(agent, 10))
    await learner.renew(10, [learner.best])
    return learner


async def upload(site: Any, project: str, name: str) -> None:
    data = f"data of {project}".encode()
    header = artifact_service_pb2.UploadHeader(
        parent=f"projects/{project}",
        artifact_id=name,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
    )
    header.kind = artifact_service_pb2.ARTIFACT_KIND_REPORT
    turns = [
        artifact_service_pb2.UploadRequest(header=header),
        artifact_service_pb2.UploadRequest(data=data),
    ]
    await site.client.artifacts.Upload(iter(turns))


async def answers(stub: Any, method: Any, request: Any, token: str) -> AsyncIterator[str]:
    """What a call says, as text: its messages, or its error with all details."""
    timeout_s = (
        0.3 if method.server_streaming or method.name in ("CreateJob", "LeaseWork") else 30.0
    )
    asked = iter([request]) if method.client_streaming else request
    try:
        answer = getattr(stub, method.name)(asked, metadata=bearer(token), timeout=timeout_s)
        if method.server_streaming:
            async for message in answer:
                yield str(message)
        else:
            yield str(await answer)
    except DeadlineExpired:
        pass  # it watches
    except PodracerError as error:
        yield f"{error!r} {vars(error)}"


def requests(method: Any, messages: RandomMessages) -> Iterator[Any]:
    """An empty one, one that only names what the method is about, and others."""
    kind = GetMessageClass(method.input_type)
    yield kind()
    for _ in range(TRIES):
        yield messages.fill(kind())
    for name in messages.own:
        named = kind()
        for field in ("name", "parent", "job", "leaderboard", "agent"):
            if field in kind.DESCRIPTOR.fields_by_name:
                setattr(named, field, name)
                yield named


async def test_no_answer_names_another_project(site, board, make_spec, make_evaluation):
    other = await trained(site, SECRET, "rival-job", make_spec, make_evaluation)
    own = await trained(site, "a", "a-job", make_spec, make_evaluation)
    for project, name in ((SECRET, "rival-data"), ("a", "a-data")):
        await upload(site, project, name)

    def share(session: Any) -> None:
        """A pod that is of a's project works for the other one, as pods of a pool do."""
        now = session.get_one(PodRow, other.name).create_time
        state = {
            "project": "a",
            "backend": "local",
            "kind": "",
            "state": PodState.IDLE,
            "message": "",
        }
        session.add(
            PodRow(name="projects/a/pods/shared", create_time=now, last_seen_time=now, **state)
        )
        session.get_one(LeaseRow, other.lease.fence).pod = "projects/a/pods/shared"

    await site.server.orchestrator.transactions.write(share)

    policies, batcher = ServedPolicies(), Batcher()
    for seed, (project, job) in enumerate(((SECRET, "rival-job"), ("a", "a-job"))):
        found = random_policy("ppo", BOX, TORQUE, seed)
        agent = {"agent": f"projects/{project}/jobs/{job}/agents/a0001"}
        checkpoint = replace(found, metadata={**found.metadata, **agent})
        policies.put(ServedPolicy(f"{project}-policy", f"{project}-1", [checkpoint]))
    serving = PolicyConfig(tokens=site.folder / "tokens", listen="127.0.0.1:0")
    async with (
        await create_policy_server(serving, policies, batcher) as acting,
        open_aio_channel(acting.address) as to_policies,
        open_aio_channel(board) as to_board,
    ):
        boards = leaderboard_service_pb2_grpc.LeaderboardServiceStub(to_board)
        acts = policy_service_pb2_grpc.PolicyServiceStub(to_policies)
        services = [
            (site.client.jobs, job_service_pb2, "JobService", TOKENS["a"]),
            (site.client.artifacts, artifact_service_pb2, "ArtifactService", TOKENS["a"]),
            (site.client.pods, pod_service_pb2, "PodService", own.lease.token),
            (boards, leaderboard_service_pb2, "LeaderboardService", TOKENS["a"]),
            (acts, policy_service_pb2, "PolicyService", TOKENS["a"]),
        ]
        messages = RandomMessages(random.Random(1))
        job = own.lease.job
        messages.own = [
            "projects/a",
            job,
            job.replace("/jobs/", "/leaderboards/"),
            f"{job}/checkpoints/best",
        ]
        messages.own += [own.best.agent, own.lease.name, own.name, "projects/a/pods/shared"]
        messages.own += ["projects/a/artifacts/a-data", "a-policy", "absent"]
        messages._texts += messages.own * 4
        told: set[str] = set()
        for stub, module, service, token in services:
            for method in module.DESCRIPTOR.services_by_name[service].methods:
                if method.name in ("DeleteJob", "CancelJob", "ReleaseLease", "CompleteWork"):
                    # they answer with nothing, or with what the others do, and would end what is
                    # asked about
                    continue
                for request in requests(method, messages):
                    async for text in answers(stub, method, request, token):
                        assert SECRET not in text, f"{method.full_name} of {request}"
                        told.add(method.name)
        theirs = policy_service_pb2.ActRequest(policy=f"{SECRET}-policy", values=[0.0] * 3)
        assert (await acts.Act(theirs, metadata=bearer(TOKENS[SECRET]))).values
        with pytest.raises(PermissionRefused):
            await acts.Act(theirs, metadata=bearer(TOKENS["a"]))
        assert {
            "GetJob",
            "ListPods",
            "ListJobs",
            "Download",
            "GetLeaderboard",
            "Act",
            "RenewLease",
        } <= told
    await batcher.close()


async def test_a_checkpoint_of_another_job_is_never_ones_best(site, make_spec, make_evaluation):
    """A lease's holder that knows the other's checkpoint names it in an evaluation, to have it
    served as its own."""
    other = await trained(site, SECRET, "rival-job", make_spec, make_evaluation)
    own = await trained(site, "a", "a-job", make_spec, make_evaluation)
    beside = await trained(site, "a", "a-second-job", make_spec, make_evaluation)
    stolen = make_evaluation(own.best.agent, 1000.0, checkpoint=other.best.checkpoint)
    with raises(PermissionRefused, "OTHER_PROJECT", match="projects/rival"):
        await own.renew(10, [stolen])
    await own.renew(
        10, [make_evaluation(own.best.agent, 1000.0, checkpoint=beside.best.checkpoint)]
    )
    job = await site.job(own.lease.job)
    assert job.progress.best.checkpoint.prefix == own.best.checkpoint.prefix
    data = b"".join(
        [
            answer.data
            async for answer in site.artifacts.Download(name=f"{job.name}/checkpoints/best")
        ]
    )
    assert b"rival" not in data and b"a-second-job" not in data
    wrong = pod_service_pb2.RenewLeaseRequest(
        lease=own.lease.name.replace("/a/", "/rival/"), fence=own.lease.fence
    )
    with pytest.raises(PermissionRefused):
        await site.client.pods.RenewLease(wrong, metadata=bearer(own.lease.token))


async def test_the_end_of_a_log_is_for_the_job_that_ran(site, make_spec, make_evaluation):
    """Any job that a pod may serve hears that the pod crashes, and only the one that it worked for
    what it has said."""
    other = await trained(site, SECRET, "rival-job", make_spec, make_evaluation)
    job = await create(site, SECRET, "job-beside", make_spec)
    transactions, clock = site.server.orchestrator.transactions, site.server.orchestrator.clock

    def crash(session: Any) -> list[str]:
        pod = session.get_one(PodRow, other.name)
        pod.backend, pod.kind = "kubernetes", plan_of(session.get_one(JobRow, job.uid)).kind.name
        trouble = Trouble(
            "POD_CRASHES", "the learner ended with exit code 1", "; its log ends:\nrival secret"
        )
        pods.note_troubles(session, {pod.name: trouble}, clock.now())
        return [pod.message, *(said(session, uid) for uid in (job.uid, other.lease.job_uid))]

    def said(session: Any, uid: str) -> str:
        from podracer_orchestrator import outbox

        return next(
            event.message
            for event in outbox.after(session, uid, 0, 100)
            if event.kind == "POD_CRASHES"
        )

    row, to_beside, to_other = await transactions.write(crash)
    assert row == to_beside == "the learner ended with exit code 1"
    assert to_other == "the learner ended with exit code 1; its log ends:\nrival secret"
