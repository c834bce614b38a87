"""The SDK's way in: one object that knows the orchestrator and the leaderboard."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

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
from podracer_client import promotions
from podracer_client.connection import Connection, find_connection
from podracer_client.job import Job
from podracer_client.names import DEFAULT_PROJECT, job_name
from podracer_core.errors import InvalidInput
from podracer_core.rpc.channel import ChannelOptions, open_channel
from podracer_core.rpc.tls import TlsFolder

if TYPE_CHECKING:
    from podracer_core.jobs.spec import JobSpec

_JOBS = "/podracer.orchestrator.v1.JobService/"
_ARTIFACTS = "/podracer.orchestrator.v1.ArtifactService/"
_BOARDS = "/podracer.leaderboard.v1.LeaderboardService/"
_IDEMPOTENT = (
    *(
        _JOBS + method
        for method in (
            "CreateJob",
            "GetJob",
            "ListJobs",
            "CancelJob",
            "ListPods",
            "ListEvents",
            "GetCapacity",
            "CollectCheckpoints",
            "PromotePolicy",
            "RollbackPolicy",
            "ListPromotions",
        )
    ),
    *(_ARTIFACTS + method for method in ("GetArtifact", "ListArtifacts")),
    *(_BOARDS + method for method in ("GetLeaderboard", "ListAgents", "GetAgent", "ListEvaluations")),
)
_PAGE_SIZE = 1000


class Client:
    """Submits jobs and reads what became of them. Every method raises a PodracerError where the server refuses.

    `job_service`, `artifact_service` and `leaderboard_service` are the plain stubs, for what has no method here.
    """

    def __init__(self, connection: Connection, *, allow_insecure: bool = False) -> None:
        """Connects at the first call. Raises InvalidInput for a bad address, or one that plaintext may not go to."""
        tls = TlsFolder(connection.tls) if isinstance(connection.tls, Path) else connection.tls
        options = ChannelOptions(idempotent_methods=_IDEMPOTENT, allow_insecure=allow_insecure, tls=tls)
        self.connection = connection
        self._channels: list[grpc.Channel] = []
        if connection.orchestrator:
            to_orchestrator = replace(options, server="orchestrator")
            channel = open_channel(connection.orchestrator, connection.token, to_orchestrator)
            self._channels.append(channel)
            self._jobs = job_service_pb2_grpc.JobServiceStub(channel)
            self._artifacts = artifact_service_pb2_grpc.ArtifactServiceStub(channel)
        if connection.leaderboard:
            to_leaderboard = replace(options, server="leaderboard")
            channel = open_channel(connection.leaderboard, connection.token, to_leaderboard)
            self._channels.append(channel)
            self._leaderboards = leaderboard_service_pb2_grpc.LeaderboardServiceStub(channel)

    @classmethod
    def connect(
        cls,
        orchestrator: str | None = None,
        leaderboard: str | None = None,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        tls: str | Path | None = None,
        folder: str | Path | None = None,
        context: str | None = None,
        allow_insecure: bool = False,
    ) -> Self:
        """A client of the given servers, of a state folder, of a context (`podracer context`), of what PODRACER_CONTEXT
        or PODRACER_ORCHESTRATOR … name, of ./runs, or of the current context.

        `tls` is a folder with ca.pem, cert.pem and key.pem, for servers that speak TLS (PODRACER_TLS).
        Raises NotFound where no server is known, InvalidInput for an unreadable token or certificate.
        """
        connection = find_connection(
            orchestrator,
            leaderboard,
            token=token,
            token_file=Path(token_file) if token_file is not None else None,
            tls=Path(tls) if tls is not None else None,
            folder=Path(folder) if folder is not None else None,
            context=context,
        )
        try:
            return cls(connection, allow_insecure=allow_insecure)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the calls that are under way."""
        for channel in self._channels:
            channel.close()
        self.connection.close()

    @property
    def job_service(self) -> job_service_pb2_grpc.JobServiceStub:
        if not self.connection.orchestrator:
            raise InvalidInput("the orchestrator's address is not known", reason="NO_ADDRESS")
        return self._jobs

    @property
    def artifact_service(self) -> artifact_service_pb2_grpc.ArtifactServiceStub:
        if not self.connection.orchestrator:
            raise InvalidInput("the orchestrator's address is not known", reason="NO_ADDRESS")
        return self._artifacts

    @property
    def leaderboard_service(self) -> leaderboard_service_pb2_grpc.LeaderboardServiceStub:
        if not self.connection.leaderboard:
            raise InvalidInput("the leaderboard's address is not known", reason="NO_ADDRESS")
        return self._leaderboards

    def submit(self, job: str | Path | JobSpec, *, job_id: str = "", request_id: str | None = None) -> Job:
        """Create a job from a job file or a JobSpec; checked here first, with the same rules as on the server.

        Its code and data are uploaded before. Raises InvalidInput with every bad field, AlreadyExists for a taken
        `job_id`.
        """
        from podracer_client.warm_starts import look_up_founders  # late: those who only read need none of it
        from podracer_core.jobs.job_file import load_job_file

        spec = self.upload_files(load_job_file(Path(job)) if isinstance(job, str | Path) else job)
        spec = look_up_founders(self.leaderboard, spec)
        request = job_service_pb2.CreateJobRequest(
            job_id=job_id, spec=spec.to_message(), request_id=request_id or secrets.token_hex(16)
        )
        return Job(self, self.job_service.CreateJob(request).job)

    def upload_files(self, spec: JobSpec) -> JobSpec:
        """`spec` with its code folder and its data sets in the server's object store, as a server takes it.

        Raises InvalidInput where one of them cannot be sent.
        """
        from podracer_client.uploads import upload_files

        return upload_files(self.artifact_service, spec)

    def job(self, name: str) -> Job:
        """The job of that name or id. Raises NotFound."""
        return Job(self, self.job_service.GetJob(job_service_pb2.GetJobRequest(name=job_name(name))).job)

    def jobs(
        self,
        states: Sequence[job_pb2.JobState.ValueType] = (),
        *,
        matching: str = "",
        parent: str = DEFAULT_PROJECT,
    ) -> list[Job]:
        """The jobs of a project, newest first; only those in `states`, and `matching` a filter, where given.

        `matching` is the filter of ListJobs: `state=RUNNING AND labels.team=vision`. Raises InvalidInput for a bad one.
        """
        request = job_service_pb2.ListJobsRequest(parent=parent, page_size=_PAGE_SIZE, states=states, filter=matching)
        found: list[Job] = []
        while True:
            response = self.job_service.ListJobs(request)
            found.extend(Job(self, message) for message in response.jobs)
            if not response.next_page_token:
                return found
            request.page_token = response.next_page_token

    def capacity(self, *, parent: str = DEFAULT_PROJECT) -> job_service_pb2.GetCapacityResponse:
        """What the pool of pods has, what of it is in use, and each unfinished job's share."""
        return self.job_service.GetCapacity(job_service_pb2.GetCapacityRequest(parent=parent))

    def collect_checkpoints(
        self, *, dry_run: bool = False, parent: str = DEFAULT_PROJECT
    ) -> job_service_pb2.CollectCheckpointsResponse:
        """Delete the checkpoints that nothing needs any more; with `dry_run` only say which these are."""
        request = job_service_pb2.CollectCheckpointsRequest(parent=parent, validate_only=dry_run)
        return self.job_service.CollectCheckpoints(request)

    def leaderboard(self, name: str) -> leaderboard_service_pb2.Leaderboard:
        """The ranking of a leaderboard (`projects/p/leaderboards/j`), best first. Raises NotFound."""
        request = leaderboard_service_pb2.GetLeaderboardRequest(name=name)
        return self.leaderboard_service.GetLeaderboard(request).leaderboard

    def watch_leaderboard(self, name: str) -> Iterator[leaderboard_service_pb2.Leaderboard]:
        """The ranking whenever it changes. Raises Unavailable when the server goes away."""
        request = leaderboard_service_pb2.WatchLeaderboardRequest(
            name=name, after_revision=self.leaderboard(name).revision
        )
        for response in self.leaderboard_service.WatchLeaderboard(request):
            yield response.leaderboard

    def agents(self, leaderboard: str) -> list[leaderboard_service_pb2.Agent]:
        """Every agent of a leaderboard, ranked or not, oldest first."""
        request = leaderboard_service_pb2.ListAgentsRequest(leaderboard=leaderboard, page_size=_PAGE_SIZE)
        found: list[leaderboard_service_pb2.Agent] = []
        while True:
            response = self.leaderboard_service.ListAgents(request)
            found.extend(response.agents)
            if not response.next_page_token:
                return found
            request.page_token = response.next_page_token

    def evaluations(self, leaderboard: str, *, agent: str = "") -> Iterator[agent_pb2.Evaluation]:
        """Every evaluation of a leaderboard, or of one of its agents, oldest first; asked for page by page."""
        request = leaderboard_service_pb2.ListEvaluationsRequest(
            leaderboard=leaderboard, agent=agent, page_size=_PAGE_SIZE
        )
        while True:
            response = self.leaderboard_service.ListEvaluations(request)
            yield from response.evaluations
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    def events(self, job: str, *, after_position: int = 0) -> Iterator[job_pb2.Event]:
        """What happened to a job after a position of its log, oldest first; asked for page by page."""
        request = job_service_pb2.ListEventsRequest(
            job=job_name(job), after_position=after_position, page_size=_PAGE_SIZE
        )
        while True:
            response = self.job_service.ListEvents(request)
            yield from response.events
            if not response.more:
                return
            request.after_position = response.events[-1].position

    def promote(self, job: str, policy: str = "", *, alias: str = "", reason: str = "") -> job_service_pb2.Promotion:
        """Point an alias of the job at a policy: an agent, a checkpoint (by name), or the job's best.

        Raises NotFound, and PreconditionFailed (NO_CANDIDATE) where there is nothing that could be promoted.
        """
        return promotions.promote(self.job_service, job, policy, alias, reason)

    def roll_back(self, job: str, *, alias: str = "", reason: str = "") -> job_service_pb2.Promotion:
        """Point an alias back at the policy before. Raises PreconditionFailed (NO_FORMER_POLICY) where none is."""
        return promotions.roll_back(self.job_service, job, alias, reason)

    def promotions(self, job: str, *, alias: str = "") -> list[job_service_pb2.Promotion]:
        """What was promoted, what was not, and why, newest first."""
        return promotions.history(self.job_service, job, alias)

    def describe(self, artifact: str) -> artifact_service_pb2.Artifact:
        """An artifact's files and sizes. Raises NotFound."""
        return self.artifact_service.GetArtifact(artifact_service_pb2.GetArtifactRequest(name=artifact)).artifact

    def download(self, artifact: str, target: str | Path) -> artifact_service_pb2.Artifact:
        """Write an artifact's files into the new folder `target`, each checked against its SHA-256.

        Raises NotFound, AlreadyExists when `target` holds something, DataCorrupted.
        """
        request = artifact_service_pb2.DownloadRequest(name=artifact)
        from podracer_core.attachments.artifacts import receive_artifact

        return receive_artifact(self.artifact_service.Download(request), Path(target))
