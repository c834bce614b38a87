"""The entry point of the SDK: a client of the orchestrator and the leaderboard."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2
from podracer_client.jobs.job import Job, find_job
from podracer_client.names import DEFAULT_PROJECT
from podracer_client.servers import Servers, find_connection, pages
from podracer_core.errors import DeadlineExpired, Unavailable

if TYPE_CHECKING:
    from podracer_platform.jobs import JobSpec


_INTERVAL_S = 1.0


class Client(Servers):
    """Submits jobs and reads their results. Every method raises a PodracerError if the server
    refuses.

    `job_service`, `artifact_service` and `leaderboard_service` are the gRPC stubs, for calls
    without a method here."""

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
        """Connect to the first of these that is set: the given servers, `folder` or context
        (`podracer context`); PODRACER_CONTEXT, or PODRACER_ORCHESTRATOR and so on; a server that
        runs in ./runs; the current context.

        `tls` is a folder with ca.pem, cert.pem and key.pem, for servers with TLS (PODRACER_TLS).
        Raises NotFound if no server is known, InvalidInput for an unreadable token or certificate.
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

    def submit(
        self, job: str | Path | JobSpec, *, job_id: str = "", request_id: str | None = None
    ) -> Job:
        """Create a job from a job file or a JobSpec. It is first checked here, with the same rules
        as on the server.

        Uploads its code and data first. Raises InvalidInput with every bad field, AlreadyExists for
        a taken `job_id`."""
        # late: reading needs none of it
        from podracer_client.jobs.submission import look_up_founders
        from podracer_platform.jobs import load_job_file

        spec = self.upload_files(load_job_file(Path(job)) if isinstance(job, str | Path) else job)
        spec = look_up_founders(self, spec)
        request = job_service_pb2.CreateJobRequest(
            job_id=job_id, spec=spec.to_message(), request_id=request_id or secrets.token_hex(16)
        )
        return Job(self, self.job_service.CreateJob(request).job)

    def upload_files(self, spec: JobSpec) -> JobSpec:
        """Upload the code folder and data sets of `spec`; returns it with references to the object
        store.

        Raises InvalidInput if one of them cannot be sent.
        """
        from podracer_client.artifacts import upload_files

        return upload_files(self.artifact_service, spec)

    def job(self, name: str) -> Job:
        """A job by its resource name, its id, or the name in its job file if only one job has it.

        Raises NotFound, InvalidInput.
        """
        return Job(self, find_job(self, name))

    def full_name(self, job: str) -> str:
        """The resource name of a job; `job` accepts the same names."""
        return self.job(job).name

    def jobs(
        self,
        states: Sequence[job_pb2.JobState.ValueType] = (),
        *,
        matching: str = "",
        parent: str = DEFAULT_PROJECT,
        full: bool = False,
    ) -> list[Job]:
        """The jobs of a project, newest first; if given, only those in `states` and those that
        match a filter.

        `matching` is the filter of ListJobs: `state=RUNNING AND labels.team=vision`. Raises
        InvalidInput for a bad one. Without `full` they lack what may be large (JobView); `refresh`
        reads one job in full."""
        view = job_service_pb2.JOB_VIEW_FULL if full else job_service_pb2.JOB_VIEW_BASIC
        request = job_service_pb2.ListJobsRequest(
            parent=parent, states=states, filter=matching, view=view
        )
        return [
            Job(self, job)
            for page in pages(self.job_service.ListJobs, request)
            for job in page.jobs
        ]

    def capacity(self, *, parent: str = DEFAULT_PROJECT) -> job_service_pb2.GetCapacityResponse:
        """The resources of the pool, their use, and each unfinished job's share."""
        return self.job_service.GetCapacity(job_service_pb2.GetCapacityRequest(parent=parent))

    def collect_checkpoints(
        self, *, dry_run: bool = False, parent: str = DEFAULT_PROJECT
    ) -> job_service_pb2.CollectCheckpointsResponse:
        """Delete checkpoints that are no longer needed; with `dry_run` only list them."""
        request = job_service_pb2.CollectCheckpointsRequest(parent=parent, validate_only=dry_run)
        return self.job_service.CollectCheckpoints(request)

    def watch_leaderboard(self, name: str) -> Iterator[leaderboard_service_pb2.Leaderboard]:
        """Yield the ranking at each change. Raises Unavailable if the server becomes
        unreachable."""
        revision = self.leaderboard(name).revision
        while True:
            request = leaderboard_service_pb2.WatchLeaderboardRequest(
                name=name, after_revision=revision
            )
            try:
                for response in self.leaderboard_service.WatchLeaderboard(request):
                    revision = response.leaderboard.revision
                    yield response.leaderboard
                return
            except Unavailable:
                self.leaderboard(name)  # still there: only the connection has reached its age

    def promote(
        self, job: str, policy: str = "", *, alias: str = "", reason: str = ""
    ) -> job_service_pb2.Promotion:
        """Point an alias of the job at a policy: an agent (by name or id), a checkpoint (by name),
        or the job's best.

        Raises NotFound, and PreconditionFailed (NO_CANDIDATE) if there is no policy to promote.
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

    def roll_back(
        self, job: str, *, alias: str = "", reason: str = ""
    ) -> job_service_pb2.Promotion:
        """Point an alias back at its previous policy. Raises PreconditionFailed (NO_FORMER_POLICY)
        if there is none."""
        request = job_service_pb2.RollbackPolicyRequest(
            job=self.full_name(job), alias=alias, reason=reason, request_id=secrets.token_hex(16)
        )
        return self.job_service.RollbackPolicy(request).promotion

    def promotions(self, job: str, *, alias: str = "") -> list[job_service_pb2.Promotion]:
        """Promotions and rejections with their reasons, newest first."""
        request = job_service_pb2.ListPromotionsRequest(job=self.full_name(job), alias=alias)
        return [
            each
            for page in pages(self.job_service.ListPromotions, request)
            for each in page.promotions
        ]


def follow_jobs(
    client: Client,
    names: Sequence[str],
    *,
    patience_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Mapping[str, Job]]:
    """Yield the jobs by name, in the order of `names`, about once a second until all have ended.

    It polls, as a stream for each job would need a thread for each. Deleted jobs are left out.
    Raises Unavailable if the server does not answer for `patience_s`."""
    last_answer = clock()
    while True:
        try:
            found = {job.name: job for job in client.jobs()}
            last_answer = clock()
        except (Unavailable, DeadlineExpired) as error:
            if clock() - last_answer > patience_s:
                message = f"no answer from the orchestrator for {patience_s:.0f} s: {error.message}"
                raise Unavailable(message, reason=error.reason) from error
        else:
            now = {name: found[name] for name in names if name in found}
            yield now
            if all(job.ended for job in now.values()):
                return
        wait(_INTERVAL_S)
