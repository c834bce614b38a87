"""A job's code and data: accepted where they were uploaded, kept while the job is there."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from podracer.common.v1 import environment_pb2, evolution_pb2, tensor_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import (
    Exhausted,
    InvalidInput,
    NotFound,
    PodracerError,
    PreconditionFailed,
)
from support.errors import raises

CODE, TABLE = b"PK code" * 1000, b"ticker,time\n"


async def upload(
    site: Any, content: bytes, kind: int = artifact_pb2.ARTIFACT_KIND_CODE
) -> artifact_pb2.Artifact:
    sha256 = hashlib.sha256(content).hexdigest()

    def requests() -> Any:
        yield artifact_pb2.UploadRequest(
            header=artifact_pb2.UploadHeader(kind=kind, size_bytes=len(content), sha256=sha256)
        )
        yield artifact_pb2.UploadRequest(data=content)

    return (await site.client.artifacts.Upload(requests())).artifact


def reference(artifact: artifact_pb2.Artifact, name: str = "") -> tensor_pb2.ObjectReference:
    return tensor_pb2.ObjectReference(
        key=artifact.uri, sha256=artifact.sha256, size_bytes=artifact.size_bytes, name=name
    )


@pytest.fixture
async def parts(site: Any) -> dict[str, Any]:
    """What of a spec names the two uploaded files."""
    code = await upload(site, CODE)
    table = await upload(site, TABLE, artifact_pb2.ARTIFACT_KIND_DATA_SET)
    environment = environment_pb2.EnvironmentSpec(
        entry_point="my_pkg:Env", code=reference(code, "code.zip")
    )
    return {"environment": environment, "data": {"table": reference(table, "prices.csv")}}


async def test_pods_are_told_code_and_data(site, parts):
    job = await site.create(**parts)
    assert job.state == job_pb2.JOB_STATE_VALIDATING
    assert job.spec.environment == parts["environment"]
    assert job.spec.data["table"] == parts["data"]["table"]
    lease = await site.learner().ask()
    told = lease.inspect.environment
    assert told.code == parts["environment"].code
    assert dict(told.data) == parts["data"]
    described = environment_pb2.EnvironmentDescription(
        observation_space=environment_pb2.Space(
            box=environment_pb2.BoxSpace(shape=[1], low=[0], high=[1])
        ),
        action_space=environment_pb2.Space(discrete=environment_pb2.DiscreteSpace(n=2)),
        shares_state=True,
        observation_origin=[1.7e9],
    )
    learner = site.learner()
    learner.lease = lease
    await learner.complete(inspect=pod_pb2.InspectResult(description=described))
    lease = await site.learner().ask()
    # it has no time limit: a tenth of the steps / 32 episodes
    told.isolation, told.evaluation_steps = "process", 3125
    told.observation_origin.append(1.7e9)
    assert lease.train.cohort.environment == told


async def test_a_built_in_environment_with_data_is_inspected(site, parts):
    job = await site.create(environment={"id": "StockTrading-v0"}, data=parts["data"])
    assert job.state == job_pb2.JOB_STATE_VALIDATING
    with raises(InvalidInput, "INVALID_JOB", field="data.table"):
        await site.create(data=parts["data"])
    assert (await site.create()).state == job_pb2.JOB_STATE_PENDING


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (
            lambda spec: setattr(spec.environment.code, "key", "projects/default/artifacts/x/y"),
            "environment.code",
        ),
        (lambda spec: setattr(spec.environment.code, "sha256", "0" * 64), "environment.code"),
        (lambda spec: setattr(spec.environment.code, "size_bytes", 5), "environment.code"),
        (lambda spec: spec.environment.code.CopyFrom(spec.data["table"]), "environment.code"),
        (lambda spec: spec.data["table"].CopyFrom(spec.environment.code), "data.table"),
        (lambda spec: setattr(spec.data["table"], "sha256", "x"), "data.table.sha256"),
        (lambda spec: setattr(spec.data["table"], "name", "../x"), "data.table.name"),
        (lambda spec: setattr(spec.data["table"], "key", ""), "data.table.key"),
        (
            lambda spec: setattr(spec.environment.code, "size_bytes", 65 << 20),
            "environment.code.size_bytes",
        ),
        (lambda spec: spec.data["a b"].CopyFrom(spec.data["table"]), "data.a b"),
        (lambda spec: spec.environment.kwargs.update({"table": 1}), "data.table"),
        (
            lambda spec: spec.environment.data["table"].CopyFrom(spec.data["table"]),
            "environment.data",
        ),
        (
            lambda spec: spec.environment.MergeFrom(
                environment_pb2.EnvironmentSpec(id="CartPole-v1")
            ),
            "environment",
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_what_was_not_uploaded_so_is_refused_by_its_field(
    site, parts, make_spec, spoil, field, validate_only
):
    spec = make_spec(**parts)
    spoil(spec)
    with pytest.raises(InvalidInput) as refused:
        await site.jobs.CreateJob(spec=spec, validate_only=validate_only)
    assert field in [violation.field for violation in refused.value.violations]
    assert not (await site.jobs.ListJobs()).jobs


async def test_an_uploaded_checkpoint_founds_a_job_and_stays(site):
    stored = await upload(site, b"PK checkpoint", artifact_pb2.ARTIFACT_KIND_POLICY)
    founder = evolution_pb2.Founder(agent=stored.name, algorithm="ppo")
    founder.checkpoint.prefix, founder.checkpoint.manifest_sha256 = stored.uri, "0" * 64
    with raises(InvalidInput, "NOT_UPLOADED"):
        await site.create(founders=[founder])
    founder.checkpoint.manifest_sha256 = stored.sha256
    job = await site.create(founders=[founder])
    assert job.spec.founders[0].checkpoint.size_bytes == stored.size_bytes, "which a learner reads"
    with raises(PreconditionFailed, "ARTIFACT_IN_USE"):
        await site.artifacts.DeleteArtifact(name=stored.name)
    await site.learner().ask()  # the leaderboard is there
    (told,) = site.board.boards[job.leaderboard].founders
    assert told.checkpoint.prefix == stored.uri


async def test_files_of_another_project_are_not_ones_own(site, parts, make_spec):
    request = job_service_pb2.CreateJobRequest(parent="projects/other", spec=make_spec(**parts))
    with raises(InvalidInput, "NOT_UPLOADED"):
        await site.client.jobs.CreateJob(request)


async def test_a_file_stays_as_long_as_a_job_needs_it(site, parts):
    name = f"projects/default/artifacts/{parts['environment'].code.sha256}"
    jobs = [await site.create(**parts) for _ in range(2)]

    async def delete() -> None:
        await site.artifacts.DeleteArtifact(name=name)

    for job in jobs:
        with raises(PreconditionFailed, "ARTIFACT_IN_USE") as refused:
            await delete()
        assert job.name in refused.value.message or jobs[1].name in refused.value.message
        await site.jobs.CancelJob(name=job.name)
        with pytest.raises(PreconditionFailed):  # its policies can still be evaluated
            await delete()
        await site.jobs.DeleteJob(name=job.name)
    await delete()
    with pytest.raises(NotFound):
        await site.artifacts.GetArtifact(name=name)
    with raises(InvalidInput, "NOT_UPLOADED"):
        await site.create(**parts)


async def test_a_code_archive_may_not_be_as_large_as_a_data_set(site):
    for kind, size_bytes, expected in (
        (artifact_pb2.ARTIFACT_KIND_CODE, (64 << 20) + 1, Exhausted),
        # for its bytes, not for its size
        (artifact_pb2.ARTIFACT_KIND_DATA_SET, (64 << 20) + 1, InvalidInput),
        (artifact_pb2.ARTIFACT_KIND_DATA_SET, (2 << 30) + 1, Exhausted),
    ):
        header = artifact_pb2.UploadHeader(kind=kind, size_bytes=size_bytes, sha256="0" * 64)
        with pytest.raises(PodracerError) as refused:
            await site.client.artifacts.Upload(iter([artifact_pb2.UploadRequest(header=header)]))
        assert type(refused.value) is expected
