"""The SDK's way in: one object that knows the orchestrator and the leaderboard."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.jobs.finding import find_job
from podracer_client.jobs.job import Job
from podracer_client.names import DEFAULT_PROJECT, job_name
from podracer_client.servers.lookup import find_connection
from podracer_client.servers.stubs import PAGE_SIZE, Servers, pages

if TYPE_CHECKING:
    from podracer_core.jobs.spec import JobSpec


class Client(Servers):
    """Submits jobs and reads what became of them. Every method raises a PodracerError where the server refuses.

    `job_service`, `artifact_service` and `leaderboard_service` are the plain stubs, for what has no method here.
    """

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

    def submit(self, job: str | Path | JobSpec, *, job_id: str = "", request_id: str | None = None) -> Job:
        """Create a job from a job file or a JobSpec; checked here first, with the same rules as on the server.

        Its code and data are uploaded before. Raises InvalidInput with every bad field, AlreadyExists for a taken
        `job_id`.
        """
        from podracer_client.jobs.warm_starts import look_up_founders  # late: reading needs none of it
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
        from podracer_client.artifacts.uploads import upload_files

        return upload_files(self.artifact_service, spec)

    def job(self, name: str) -> Job:
        """The job of that name or id, or the only one whose file has that name. Raises NotFound, InvalidInput."""
        return Job(self, find_job(self, name))

    def full_name(self, job: str) -> str:
        """The resource name of a job that is given as `job` takes it."""
        return self.job(job).name

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
        request = job_service_pb2.ListJobsRequest(parent=parent, states=states, filter=matching)
        return [Job(self, job) for page in pages(self.job_service.ListJobs, request) for job in page.jobs]

    def capacity(self, *, parent: str = DEFAULT_PROJECT) -> job_service_pb2.GetCapacityResponse:
        """What the pool of pods has, what of it is in use, and each unfinished job's share."""
        return self.job_service.GetCapacity(job_service_pb2.GetCapacityRequest(parent=parent))

    def collect_checkpoints(
        self, *, dry_run: bool = False, parent: str = DEFAULT_PROJECT
    ) -> job_service_pb2.CollectCheckpointsResponse:
        """Delete the checkpoints that nothing needs any more; with `dry_run` only say which these are."""
        request = job_service_pb2.CollectCheckpointsRequest(parent=parent, validate_only=dry_run)
        return self.job_service.CollectCheckpoints(request)

    def watch_leaderboard(self, name: str) -> Iterator[leaderboard_service_pb2.Leaderboard]:
        """The ranking whenever it changes. Raises Unavailable when the server goes away."""
        request = leaderboard_service_pb2.WatchLeaderboardRequest(
            name=name, after_revision=self.leaderboard(name).revision
        )
        for response in self.leaderboard_service.WatchLeaderboard(request):
            yield response.leaderboard

    def agents(self, leaderboard: str) -> list[leaderboard_service_pb2.Agent]:
        """Every agent of a leaderboard, ranked or not, oldest first."""
        request = leaderboard_service_pb2.ListAgentsRequest(leaderboard=leaderboard)
        return [agent for page in pages(self.leaderboard_service.ListAgents, request) for agent in page.agents]

    def evaluations(self, leaderboard: str, *, agent: str = "") -> Iterator[agent_pb2.Evaluation]:
        """Every evaluation of a leaderboard, or of one of its agents, oldest first; asked for page by page."""
        request = leaderboard_service_pb2.ListEvaluationsRequest(leaderboard=leaderboard, agent=agent)
        for page in pages(self.leaderboard_service.ListEvaluations, request):
            yield from page.evaluations

    def events(self, job: str, *, after_position: int = 0) -> Iterator[job_pb2.Event]:
        """What happened to a job after a position of its log, oldest first; asked for page by page."""
        request = job_service_pb2.ListEventsRequest(
            job=job_name(job), after_position=after_position, page_size=PAGE_SIZE
        )
        while True:
            response = self.job_service.ListEvents(request)
            yield from response.events
            if not response.more:
                return
            request.after_position = response.events[-1].position

    def promote(self, job: str, policy: str = "", *, alias: str = "", reason: str = "") -> job_service_pb2.Promotion:
        """Point an alias of the job at a policy: an agent (by name or id), a checkpoint (by name), or the job's best.

        Raises NotFound, and PreconditionFailed (NO_CANDIDATE) where there is nothing that could be promoted.
        """
        name = self.full_name(job)
        request = job_service_pb2.PromotePolicyRequest(
            job=name,
            policy=policy if not policy or "/" in policy else f"{name}/agents/{policy}",
            alias=alias,
            reason=reason,
            request_id=secrets.token_hex(16),
        )
        return self.job_service.PromotePolicy(request).promotion

    def roll_back(self, job: str, *, alias: str = "", reason: str = "") -> job_service_pb2.Promotion:
        """Point an alias back at the policy before. Raises PreconditionFailed (NO_FORMER_POLICY) where none is."""
        request = job_service_pb2.RollbackPolicyRequest(
            job=self.full_name(job), alias=alias, reason=reason, request_id=secrets.token_hex(16)
        )
        return self.job_service.RollbackPolicy(request).promotion

    def promotions(self, job: str, *, alias: str = "") -> list[job_service_pb2.Promotion]:
        """What was promoted, what was not, and why, newest first."""
        request = job_service_pb2.ListPromotionsRequest(job=self.full_name(job), alias=alias)
        return [each for page in pages(self.job_service.ListPromotions, request) for each in page.promotions]
