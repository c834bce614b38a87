"""Requests without measure: specifications, listings, what pods say, texts that PostgreSQL does not
take."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import Exhausted, Fenced, InvalidInput, PermissionRefused
from podracer_orchestrator.pool import pods
from podracer_platform.rpc import PAGE_BYTES, SPEC_BYTES, bearer
from support.errors import raises

ONE_AGENT = job_pb2.PodShape(members=1, max_count=4)


def with_arguments(size_bytes: int) -> environment_pb2.EnvironmentSpec:
    environment = environment_pb2.EnvironmentSpec(entry_point="nosuchmodule:X")
    environment.kwargs.update({"x": "A" * size_bytes})
    return environment


async def test_a_large_specification_is_refused_and_listings_do_not_have_it(site):
    with raises(InvalidInput, field="spec", match=f"environment.* {SPEC_BYTES}"):
        await site.create(environment=with_arguments(400_000))
    with pytest.raises(Exhausted, match="larger"):
        await site.create(environment=with_arguments(25 << 20))
    with pytest.raises(InvalidInput, match="spec: has"):
        await site.create(environment=with_arguments(SPEC_BYTES))
    for number in range(9):
        await site.create(
            environment=with_arguments(200_000), display_name=f"big{number}", labels={"a": "b"}
        )
    basic = await site.jobs.ListJobs()
    assert len(basic.jobs) == 9
    assert basic.ByteSize() < 20_000
    assert basic.jobs[0].spec.environment.entry_point == "nosuchmodule:X"
    assert basic.jobs[0].spec.labels == {"a": "b"}
    request = service_pb2.ListJobsRequest(view=service_pb2.JOB_VIEW_FULL)
    names = []
    while True:
        page = await site.client.jobs.ListJobs(request)
        assert page.ByteSize() < PAGE_BYTES + 10_000
        assert page.jobs[0].spec.environment.kwargs["x"] == "A" * 200_000
        names += [job.name for job in page.jobs]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert names == [job.name for job in basic.jobs]
    async for news in site.jobs.WatchJobs():
        assert not news.job.spec.environment.kwargs.fields
        break


async def test_a_request_id_with_another_job_is_refused(site):
    def request(name: str) -> service_pb2.CreateJobRequest:
        spec = job_pb2.JobSpec(
            display_name=name, environment={"id": "CartPole-v1"}, objective={"target_return": 475.0}
        )
        return service_pb2.CreateJobRequest(spec=spec, request_id="r")

    first = (await site.client.jobs.CreateJob(request("one"))).job
    assert (await site.client.jobs.CreateJob(request("one"))).job.name == first.name
    with raises(InvalidInput, "REQUEST_ID_REUSED", field="request_id"):
        await site.client.jobs.CreateJob(request("two"))


async def test_what_a_pod_says_has_bounds(site):
    job = await site.create(pod=ONE_AGENT)
    learner = site.learner()
    lease = await learner.ask()
    agent = lease.train.cohort.members[0].name

    def found(number: int = 0, **changes: Any) -> agent_pb2.Evaluation:
        values = {
            "evaluation_id": f"e{number}",
            "agent": agent,
            "purpose": 1,
            "returns": [1.0],
            "mean": 1.0,
        }
        return agent_pb2.Evaluation(**{**values, **changes})

    # tests/unit/rpc/test_bounds.py has the bounds of each field
    lies = [[found(number) for number in range(10_000)], [found(mean=math.inf)]]
    for evaluations in lies:
        with raises(InvalidInput, "OUT_OF_BOUNDS"):
            await learner.renew(evaluations=evaluations)
    with pytest.raises(InvalidInput, match="agent"):
        await learner.renew(evaluations=[found(agent="projects/default/jobs/another/agents/a0001")])
    for steps in (2**63 - 1, 2**62, -5):
        with pytest.raises(InvalidInput, match="env_steps"):
            await learner.renew(steps)
        with pytest.raises(InvalidInput, match="env_steps"):
            await learner.commit(steps)
    member = learner.member(lease.train.cohort.members[0], 10)
    many = pod_pb2.CommitCheckpointRequest(
        lease=lease.name, fence=lease.fence, members=[member] * 5000
    )
    with raises(InvalidInput, "OUT_OF_BOUNDS", field="members"):
        await site.client.pods.CommitCheckpoint(many, metadata=bearer(lease.token))
    elsewhere = pod_pb2.CommitCheckpointRequest(
        lease=lease.name.replace("projects/default", "projects/b"),
        fence=lease.fence,
        members=[member],
    )
    with pytest.raises((Fenced, PermissionRefused)):
        await site.client.pods.CommitCheckpoint(elsewhere, metadata=bearer(lease.token))
    await learner.renew(7)
    assert (await site.job(job.name)).progress.live_env_steps == 7
    assert not site.board.evaluations


async def test_pods_that_come_by_themselves_are_not_without_number(site, monkeypatch):
    monkeypatch.setattr(pods, "MOST_STATIC", 3)
    for number in range(3):
        await site.learner(f"projects/default/pods/ghost{number}").ask(0.0)
    with raises(Exhausted, "TOO_MANY_PODS"):
        await site.learner("projects/default/pods/ghost3").ask(0.0)
    await site.learner("projects/default/pods/ghost2").ask(0.0)


async def test_a_nul_in_a_text_does_no_harm_on_postgresql(site, postgresql):
    await site.restart(database=postgresql.create_database("nul"))
    job = await site.create(
        environment=environment_pb2.EnvironmentSpec(entry_point="evil.envs:Nul")
    )
    learner = site.learner()
    lease = await learner.ask()
    problem = cohort_pb2.Problem(
        reason="USER_CODE_FAILED", message="nul \0 here", detail="Traceback\0"
    )
    with pytest.raises(InvalidInput, match="message"):
        await learner.complete(problem=problem)
    with pytest.raises(InvalidInput, match="reason"):
        await learner.release("a\0b", "c\0d")
    with pytest.raises(InvalidInput, match="request_id"):
        await site.learner("projects/default/pods/q").ask(0.0, request_id="z\0")
    calls = [
        (
            site.client.jobs.PromotePolicy,
            service_pb2.PromotePolicyRequest(job=job.name, alias="x", reason="a\0b"),
        ),
        (
            site.client.jobs.CreateJob,
            service_pb2.CreateJobRequest(spec=job.spec, request_id="a\0b"),
        ),
        (site.client.jobs.ListJobs, service_pb2.ListJobsRequest(page_token="\0")),
        (site.client.jobs.ListPods, service_pb2.ListPodsRequest(page_token="a\0")),
        (site.client.artifacts.ListArtifacts, artifact_pb2.ListArtifactsRequest(page_token="²")),
        (
            site.client.artifacts.GetArtifact,
            artifact_pb2.GetArtifactRequest(name="projects/default/artifacts/a\0"),
        ),
    ]
    for call, request in calls:
        with pytest.raises(InvalidInput):
            await call(request)
    header = artifact_pb2.UploadHeader(
        kind=artifact_pb2.ARTIFACT_KIND_DATA_SET, sha256="0" * 64, request_id="\0"
    )
    with pytest.raises(InvalidInput, match="request_id: "):
        await site.client.artifacts.Upload(iter([artifact_pb2.UploadRequest(header=header)]))
    # What a learner of ours makes of such a text, and what a cluster says, which passes no gate.
    await learner.complete(
        lease, problem=cohort_pb2.Problem(reason="USER_CODE_FAILED", message="nul \\0 here")
    )
    assert (await site.ended(job, job_pb2.JOB_STATE_FAILED)).problem.message == "nul \\0 here"
    name = f"projects/default/pods/{uuid.uuid4().hex}"
    await site.learner(name).ask(0.0)
    await site.server.orchestrator.transactions.write(
        lambda session: pods.set_state(session, name, pods.PodState.LOST, "log: \0 \ud800")
    )
    listed = (await site.jobs.ListPods()).pods
    assert next(pod for pod in listed if pod.name == name).message == "log: \\0 \\ud800"
