"""The audit log of a server: who did what, and what came of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from podracer.orchestrator.v1 import artifact_service_pb2 as artifacts
from podracer.orchestrator.v1 import artifact_service_pb2_grpc as artifacts_grpc
from podracer.orchestrator.v1 import job_pb2, job_service_pb2_grpc
from podracer.orchestrator.v1 import job_service_pb2 as jobs
from podracer_core.errors import InvalidInput, NotFound, PodracerError
from podracer_platform.rpc import (
    PUBLIC_KEYS,
    Authorizer,
    Claims,
    TokenFiles,
    create_aio_server,
    guard,
    hash_token,
    methods_of,
    open_aio_channel,
    sign,
)

SECRET = "what was sent"


class Jobs(job_service_pb2_grpc.JobServiceServicer):
    async def CreateJob(
        self, request: jobs.CreateJobRequest, context: Any
    ) -> jobs.CreateJobResponse:
        return jobs.CreateJobResponse(job=job_pb2.Job(name="projects/a/jobs/made"))

    async def CancelJob(
        self, request: jobs.CancelJobRequest, context: Any
    ) -> jobs.CancelJobResponse:
        raise NotFound("there is none") if request.name.endswith("/missing") else ValueError(SECRET)

    async def GetJob(self, request: jobs.GetJobRequest, context: Any) -> jobs.GetJobResponse:
        return jobs.GetJobResponse()


class Artifacts(artifacts_grpc.ArtifactServiceServicer):
    async def Upload(
        self, request_iterator: AsyncIterator[artifacts.UploadRequest], context: Any
    ) -> artifacts.UploadResponse:
        async for _ in request_iterator:
            pass
        return artifacts.UploadResponse(
            artifact=artifacts.Artifact(name="projects/a/artifacts/made")
        )


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, str]]]:
    """The lines so far, as a server writes them to the file of its settings."""
    former = guard.audit_log.handlers[:], guard.audit_log.propagate
    monkeypatch.setattr(guard.audit_log, "propagate", former[1])
    monkeypatch.setattr(guard.audit_log, "handlers", former[0])
    guard.write_audit_log(tmp_path / "audit.log")

    def lines() -> list[dict[str, str]]:
        text = "".join((tmp_path / name).read_text() for name in ("audit.log.1", "audit.log"))
        assert SECRET not in text
        return [json.loads(line) for line in text.splitlines()]

    return lines


async def test_each_act_leaves_a_line(tmp_path, log):
    anna, key = sign(b"s" * 32, Claims("7f", "anna", "client", 1 << 40, ("a",), ()))
    eye, _ = sign(b"s" * 32, Claims("8f", "eye", "viewer", 1 << 40, (), ()))
    (tmp_path / PUBLIC_KEYS).write_text(key)
    (tmp_path / "client").write_text("plain\n")
    server = await create_aio_server(
        "127.0.0.1:0",
        [
            lambda server: job_service_pb2_grpc.add_JobServiceServicer_to_server(Jobs(), server),
            lambda server: artifacts_grpc.add_ArtifactServiceServicer_to_server(
                Artifacts(), server
            ),
        ],
        Authorizer(methods_of("orchestrator"), TokenFiles(tmp_path)),
    )

    async def call(token: str, method: str, request: Any) -> None:
        async with open_aio_channel(server.address, token) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            uploads = artifacts_grpc.ArtifactServiceStub(channel)
            with contextlib.suppress(PodracerError):
                await (
                    uploads.Upload(iter([request] * 2))
                    if method == "Upload"
                    else getattr(stub, method)(request)
                )

    header = artifacts.UploadRequest(
        header=artifacts.UploadHeader(parent="projects/a", request_id=SECRET)
    )
    async with server:
        await call(anna, "CreateJob", jobs.CreateJobRequest(parent="projects/a", request_id=SECRET))
        await call(anna, "CancelJob", jobs.CancelJobRequest(name="projects/a/jobs/missing"))
        await call(anna, "CancelJob", jobs.CancelJobRequest(name="projects/b/jobs/j"))
        (tmp_path / "audit.log").rename(tmp_path / "audit.log.1")  # as what rotates logs does
        await call("plain", "CancelJob", jobs.CancelJobRequest(name="projects/b/jobs/\n\x1b[2J"))
        await call(anna, "Upload", header)
        await call(anna, "GetJob", jobs.GetJobRequest(name="projects/a/jobs/j"))
        await call("guessed", "CancelJob", jobs.CancelJobRequest(name="projects/a/jobs/j"))
        await call(eye, "CancelJob", jobs.CancelJobRequest(name="projects/a/jobs/j"))
    job, upload = "orchestrator.v1.JobService/", "orchestrator.v1.ArtifactService/Upload"
    of_anna, of_eye = ("client", "7f", "anna"), ("viewer", "8f", "eye")
    assert [tuple(line[key] for key in ("role", "token", "name")) for line in log()] == [
        of_anna, of_anna, of_anna, ("client", hash_token("plain")[:23], ""), of_anna, of_eye,
    ]  # fmt: skip
    assert [
        tuple(line[key] for key in ("method", "resource", "outcome", "reason")) for line in log()
    ] == [
        (f"{job}CreateJob", "projects/a/jobs/made", "OK", ""),
        (f"{job}CancelJob", "projects/a/jobs/missing", "NOT_FOUND", "NOT_FOUND"),
        (f"{job}CancelJob", "projects/b/jobs/j", "PERMISSION_DENIED", "OTHER_PROJECT"),
        (f"{job}CancelJob", "projects/b/jobs/\n\x1b[2J", "INTERNAL", ""),
        (upload, "projects/a/artifacts/made", "OK", ""),
        # refused before it is read
        (f"{job}CancelJob", "", "PERMISSION_DENIED", "PERMISSION_REFUSED"),
    ]
    assert all(
        line["peer"].startswith("ipv4:127.0.0.1:") and line["time"].startswith("20")
        for line in log()
    )


def test_without_a_file_they_go_to_stderr(monkeypatch, capsys):
    monkeypatch.setattr(guard.audit_log, "propagate", True)  # and as before afterwards
    guard.write_audit_log(None)
    guard.audit_log.info("a line")
    assert capsys.readouterr().err == "a line\n"


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path):
    with pytest.raises(InvalidInput, match="PODRACER_AUDIT_LOG"):
        guard.write_audit_log(tmp_path / "missing" / "audit.log")
