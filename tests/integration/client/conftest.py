"""A control plane in this process: the contracts over real gRPC, behind them a dictionary."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import (
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
)
from podracer_client.jobs.client import Client
from podracer_client.servers.connection import Connection
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.rpc.auth import Authorizer
from podracer_platform.rpc.binding import ServerOptions
from podracer_platform.rpc.limits import CHUNK_REQUEST_BYTES
from podracer_platform.rpc.server import RpcServer, create_server
from podracer_platform.rpc.tls import TlsFolder
from podracer_platform.rpc.tokens import FileToken, Role, TokenFiles, create_tokens

FINAL = (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)
CHECKPOINT = {"manifest.json": b'{"files": []}', "actor.safetensors": bytes(range(256)) * 4096}


class ControlPlane(
    job_service_pb2_grpc.JobServiceServicer,
    artifact_service_pb2_grpc.ArtifactServiceServicer,
    leaderboard_service_pb2_grpc.LeaderboardServiceServicer,
):
    """Jobs do what the test puts into `news`: a function that changes the job, after which watchers
    are told."""

    def __init__(self) -> None:
        self.jobs: dict[str, job_pb2.Job] = {}
        self.pods: list[job_pb2.Pod] = []
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.requests: list[Any] = []
        self.filters: set[str] = set()
        self.uploads: dict[str, bytes] = {}
        self.page_size = 2
        self.created: dict[str, job_pb2.Job] = {}  # by request id
        self.refused: dict[str, str] = {}  # display name: why

    def add(self, spec: job_pb2.JobSpec, state: int = job_pb2.JOB_STATE_RUNNING) -> job_pb2.Job:
        number = len(self.jobs)
        job = job_pb2.Job(
            name=f"projects/default/jobs/{spec.display_name}-{number}",
            leaderboard=f"projects/default/leaderboards/{spec.display_name}-{number}",
            spec=spec,
            state=state,  # type: ignore[arg-type]
        )
        self.jobs[job.name] = job
        return job

    def CreateJob(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        if request.spec.display_name in self.refused:
            raise InvalidInput(self.refused[request.spec.display_name])
        if request.validate_only:
            return job_service_pb2.CreateJobResponse()
        if request.request_id not in self.created:
            self.created[request.request_id] = self.add(request.spec)
        return job_service_pb2.CreateJobResponse(job=self.created[request.request_id])

    def GetJob(self, request: Any, context: Any) -> Any:
        if request.name not in self.jobs:
            raise NotFound(f"there is no job {request.name}")
        return job_service_pb2.GetJobResponse(job=self.jobs[request.name])

    def ListJobs(self, request: Any, context: Any) -> Any:
        self.filters.add(request.filter)
        found = [
            job
            for job in reversed(self.jobs.values())
            if not request.states or job.state in request.states
        ]
        if request.filter.startswith("display_name="):
            found = [
                job for job in found if f"display_name={job.spec.display_name}" == request.filter
            ]
        start = int(request.page_token or 0)
        end = start + self.page_size
        token = str(end) if end < len(found) else ""
        return job_service_pb2.ListJobsResponse(jobs=found[start:end], next_page_token=token)

    def UpdateJob(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        job = self.jobs[request.name]
        job.state = job_pb2.JOB_STATE_SUSPENDED if request.suspend else job_pb2.JOB_STATE_RUNNING
        self.news.put(lambda job: None)
        return job_service_pb2.UpdateJobResponse(job=job)

    def CancelJob(self, request: Any, context: Any) -> Any:
        self.jobs[request.name].state = job_pb2.JOB_STATE_CANCELLED
        return job_service_pb2.CancelJobResponse(job=self.jobs[request.name])

    def WatchJob(self, request: Any, context: Any) -> Iterator[Any]:
        job = self.jobs[request.name]
        while True:
            yield job_service_pb2.WatchJobResponse(job=job, pods=self.pods)
            if job.state in FINAL:
                return
            while context.is_active() and self.news.empty():
                time.sleep(0.01)
            if not context.is_active():
                return
            self.news.get()(job)

    def ListPods(self, request: Any, context: Any) -> Any:
        return job_service_pb2.ListPodsResponse(pods=self.pods)

    def ListEvents(self, request: Any, context: Any) -> Any:
        return job_service_pb2.ListEventsResponse(
            events=[job_pb2.Event(kind="JOB_CREATED", message="created")]
        )

    def GetArtifact(self, request: Any, context: Any) -> Any:
        sha256 = request.name.rpartition("/")[2]
        if sha256 not in self.uploads:
            raise NotFound(f"there is no artifact {request.name}")
        artifact = artifact_service_pb2.Artifact(
            name=request.name, sha256=sha256, uri=f"artifacts/{sha256}/content"
        )
        return artifact_service_pb2.GetArtifactResponse(artifact=artifact)

    def Upload(self, request_iterator: Any, context: Any) -> Any:
        header = next(request_iterator).header
        self.requests.append(header)
        content = b"".join(request.data for request in request_iterator)
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (
            header.sha256,
            header.size_bytes,
        )
        self.uploads[header.sha256] = content
        artifact = artifact_service_pb2.Artifact(
            sha256=header.sha256, uri=f"artifacts/{header.sha256}/content"
        )
        return artifact_service_pb2.UploadResponse(artifact=artifact)

    def Download(self, request: Any, context: Any) -> Iterator[Any]:
        response = artifact_service_pb2.DownloadResponse
        yield response(artifact=artifact_service_pb2.Artifact(name=request.name))
        for path, data in CHECKPOINT.items():
            digest = hashlib.sha256(data).hexdigest()
            yield response(
                file=artifact_service_pb2.ArtifactFile(
                    path=path, size_bytes=len(data), sha256=digest
                )
            )
            for start in range(0, len(data), 1 << 20):
                yield response(data=data[start : start + (1 << 20)])

    def GetLeaderboard(self, request: Any, context: Any) -> Any:
        agent = leaderboard_service_pb2.Agent(name="projects/default/jobs/j/agents/a0001")
        candidate = leaderboard_service_pb2.Candidate(rank=1, agent=agent)
        board = leaderboard_service_pb2.Leaderboard(name=request.name, candidates=[candidate])
        return leaderboard_service_pb2.GetLeaderboardResponse(leaderboard=board)

    def ListAgents(self, request: Any, context: Any) -> Any:
        start = int(request.page_token or 0)
        agent = leaderboard_service_pb2.Agent(name=f"projects/default/jobs/j/agents/a{start:04}")
        return leaderboard_service_pb2.ListAgentsResponse(
            agents=[agent], next_page_token=str(start + 1) if start < 2 else ""
        )


METHODS = {
    **{
        f"/podracer.orchestrator.v1.JobService/{method}": {Role.CLIENT}
        for method in (
            [
                "CreateJob",
                "GetJob",
                "ListJobs",
                "UpdateJob",
                "CancelJob",
                "WatchJob",
                "ListPods",
                "ListEvents",
            ]
        )
    },
    **{
        f"/podracer.orchestrator.v1.ArtifactService/{method}": {Role.CLIENT}
        for method in ("Download", "GetArtifact", "Upload")
    },
    "/podracer.leaderboard.v1.LeaderboardService/GetLeaderboard": {Role.CLIENT},
    "/podracer.leaderboard.v1.LeaderboardService/ListAgents": {Role.CLIENT},
}


@pytest.fixture
def control_plane() -> ControlPlane:
    return ControlPlane()


def start_server(
    control_plane: ControlPlane,
    tokens: Path,
    tls: TlsFolder | None = None,
    age_s: tuple[float, float] | None = None,
) -> RpcServer:
    """A server that is orchestrator and leaderboard in one."""
    services = [
        partial(job_service_pb2_grpc.add_JobServiceServicer_to_server, control_plane),
        partial(artifact_service_pb2_grpc.add_ArtifactServiceServicer_to_server, control_plane),
        partial(
            leaderboard_service_pb2_grpc.add_LeaderboardServiceServicer_to_server, control_plane
        ),
    ]
    sizes = {"/podracer.orchestrator.v1.ArtifactService/Upload": CHUNK_REQUEST_BYTES}
    options = ServerOptions(sizes, tls=tls, connection_age_s=age_s)
    server = create_server(
        "127.0.0.1:0", services, Authorizer(METHODS, TokenFiles(tokens)), options
    )
    server.start()
    return server


@pytest.fixture
def short_lived(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Client]:
    """A client whose connections end after a few tenths of a second."""
    token = create_tokens(tmp_path / "tokens")[Role.CLIENT]
    server = start_server(control_plane, tmp_path / "tokens", age_s=(0.2, 0.2))
    with Client(Connection(server.address, server.address, FileToken(token))) as client:
        yield client
    server.drain(0)


@pytest.fixture
def connection(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    tokens: Path = tmp_path_factory.mktemp("control") / "tokens"
    token = create_tokens(tokens)[Role.CLIENT]
    server = start_server(control_plane, tokens)
    yield Connection(server.address, server.address, FileToken(token))
    server.drain(0)


@pytest.fixture
def client(connection: Connection) -> Iterator[Client]:
    with Client(connection) as client:
        yield client
