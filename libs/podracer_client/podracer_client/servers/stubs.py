"""The stubs of orchestrator and leaderboard over one connection, and common reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self, TypeVar

import grpc

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import (
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
)
from podracer_client.names import job_name
from podracer_client.servers.connection import Connection
from podracer_core.errors import DataCorrupted, InvalidInput
from podracer_platform.rpc import ChannelOptions, TlsFolder, open_channel

PAGE_SIZE = 1000
MOST_PAGES = 10_000
_JOB_METHODS = (
    *("CreateJob", "GetJob", "ListJobs", "CancelJob", "ListPods", "ListEvents", "GetCapacity"),
    *("CollectCheckpoints", "PromotePolicy", "RollbackPolicy", "ListPromotions"),
    *("ForkAgent", "PinAgent", "StopAgent"),
)
_IDEMPOTENT = (
    *(f"/podracer.orchestrator.v1.JobService/{method}" for method in _JOB_METHODS),
    *(
        f"/podracer.orchestrator.v1.ArtifactService/{method}"
        for method in ("GetArtifact", "ListArtifacts")
    ),
    *(
        f"/podracer.leaderboard.v1.LeaderboardService/{method}"
        for method in ("GetLeaderboard", "ListAgents", "GetAgent", "ListEvaluations")
    ),
)


class Servers:
    """`job_service`, `artifact_service` and `leaderboard_service` are the gRPC stubs."""

    def __init__(self, connection: Connection, *, allow_insecure: bool = False) -> None:
        """Connects at the first call. Raises InvalidInput for a bad address, or one that requires
        TLS."""
        tls = TlsFolder(connection.tls) if isinstance(connection.tls, Path) else connection.tls
        options = ChannelOptions(
            idempotent_methods=_IDEMPOTENT, allow_insecure=allow_insecure, tls=tls
        )
        self.connection = connection
        self._channels: list[grpc.Channel] = []
        if connection.orchestrator:
            channel = self._open(connection.orchestrator, replace(options, server="orchestrator"))
            self._jobs = job_service_pb2_grpc.JobServiceStub(channel)
            self._artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(channel)
        if connection.leaderboard:
            channel = self._open(connection.leaderboard, replace(options, server="leaderboard"))
            self._leaderboards = leaderboard_service_pb2_grpc.LeaderboardServiceStub(channel)

    def _open(self, address: str, options: ChannelOptions) -> grpc.Channel:
        self._channels.append(open_channel(address, self.connection.token, options))
        return self._channels[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the calls in progress and close the channels."""
        for channel in self._channels:
            channel.close()
        self.connection.close()

    @property
    def job_service(self) -> job_service_pb2_grpc.JobServiceStub:
        self._require(self.connection.orchestrator, "orchestrator")
        return self._jobs

    @property
    def artifact_service(self) -> artifact_service_pb2_grpc.ArtifactServiceStub:
        self._require(self.connection.orchestrator, "orchestrator")
        return self._artifacts

    @property
    def leaderboard_service(self) -> leaderboard_service_pb2_grpc.LeaderboardServiceStub:
        self._require(self.connection.leaderboard, "leaderboard")
        return self._leaderboards

    def _require(self, address: str, server: str) -> None:
        if not address:
            raise InvalidInput(f"the {server}'s address is not known", reason="NO_ADDRESS")

    def leaderboard(self, name: str) -> leaderboard_service_pb2.Leaderboard:
        """The ranking of a leaderboard (`projects/p/leaderboards/j`), best first. Raises
        NotFound."""
        request = leaderboard_service_pb2.GetLeaderboardRequest(name=name)
        return self.leaderboard_service.GetLeaderboard(request).leaderboard

    def agents(self, leaderboard: str) -> list[leaderboard_service_pb2.Agent]:
        """Every agent of a leaderboard, ranked or not, oldest first."""
        request = leaderboard_service_pb2.ListAgentsRequest(leaderboard=leaderboard)
        return [
            agent
            for page in pages(self.leaderboard_service.ListAgents, request)
            for agent in page.agents
        ]

    def evaluations(self, leaderboard: str, *, agent: str = "") -> Iterator[agent_pb2.Evaluation]:
        """Every evaluation of a leaderboard or of one of its agents, oldest first. Reads page by
        page."""
        request = leaderboard_service_pb2.ListEvaluationsRequest(
            leaderboard=leaderboard, agent=agent
        )
        for page in pages(self.leaderboard_service.ListEvaluations, request):
            yield from page.evaluations

    def events(self, job: str, *, after_position: int = 0) -> Iterator[job_pb2.Event]:
        """The events of a job after a position of its log, oldest first. Reads page by page."""
        request = job_service_pb2.ListEventsRequest(
            job=job_name(job), after_position=after_position, page_size=PAGE_SIZE
        )
        while True:
            response = self.job_service.ListEvents(request)
            yield from response.events
            if not response.more:
                return
            if not response.events or response.events[-1].position <= request.after_position:
                raise DataCorrupted("the server lists the same events again and again")
            request.after_position = response.events[-1].position

    def describe(self, artifact: str) -> artifact_service_pb2.Artifact:
        """An artifact's files and sizes. Raises NotFound."""
        return self.artifact_service.GetArtifact(
            artifact_service_pb2.GetArtifactRequest(name=artifact)
        ).artifact

    def download(self, artifact: str, target: str | Path) -> artifact_service_pb2.Artifact:
        """Write an artifact's files into the new folder `target`, each checked against its SHA-256.

        Raises NotFound, AlreadyExists if `target` is not empty, DataCorrupted.
        """
        # late: most callers download nothing
        from podracer_platform.attachments import receive_artifact

        request = artifact_service_pb2.DownloadRequest(name=artifact)
        return receive_artifact(
            self.artifact_service.Download(request, timeout=3600.0), Path(target)
        )


class _Listing(Protocol):
    page_size: int
    page_token: str


class _Page(Protocol):
    @property
    def next_page_token(self) -> str: ...


Request = TypeVar("Request", bound=_Listing)
Response = TypeVar("Response", bound=_Page)


def pages(call: Callable[[Request], Response], request: Request) -> Iterator[Response]:
    """The pages of a listing, each read when it is needed. Raises DataCorrupted for a listing
    without an end."""
    request.page_size = PAGE_SIZE
    for _ in range(MOST_PAGES):
        response = call(request)
        yield response
        if not response.next_page_token:
            return
        if response.next_page_token == request.page_token:
            break
        request.page_token = response.next_page_token
    raise DataCorrupted("the server lists the same page again and again")
