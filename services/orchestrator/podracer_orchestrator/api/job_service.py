"""JobService: jobs, for clients. Decodes, asks the domain, encodes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2, job_service_pb2_grpc
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_orchestrator import outbox
from podracer_orchestrator.api import job_changes
from podracer_orchestrator.api.job_changes import find_policy
from podracer_orchestrator.api.messages import (
    enum_name,
    event_message,
    job_message,
    pod_messages,
    promotion_message,
    viewed,
)
from podracer_orchestrator.api.watching import Watcher
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import founders, jobs, listing, parse_filter, require, submission
from podracer_orchestrator.orchestrator import Orchestrator
from podracer_orchestrator.pool import capacity_message, pod_uses, pods
from podracer_orchestrator.tables import JobRow
from podracer_platform.messages import seconds_from_duration
from podracer_platform.rpc import current_caller, page
from podracer_platform.rpc import resource_names as names
from podracer_platform.telemetry import current

DEFAULT_PAGE, MAX_PAGE = 100, 1000
DEFAULT_INTERVAL_S, MIN_INTERVAL_S = 0.5, 0.1

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")


class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    """Answers clients."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self._transactions = orchestrator.transactions
        self._clock = orchestrator.clock
        self._watcher = Watcher(
            orchestrator.transactions,
            orchestrator.changes,
            orchestrator.deadlines,
            self._clock,
            lambda: pod_uses(orchestrator.pool_shares),
        )

    async def drain(self) -> None:
        """End the watchers' streams."""
        self._watcher.drain()

    async def CreateJob(
        self, request: service_pb2.CreateJobRequest, context: Context
    ) -> service_pb2.CreateJobResponse:
        # Beside the loop: an id that is not built in has Gymnasium imported, once.
        profiles = self._orchestrator.pod_profiles.entries
        has_gpus = self._orchestrator.pool_shares.has_gpus
        new = await asyncio.to_thread(submission.new_job, request, profiles, has_gpus=has_gpus)
        if request.validate_only:
            spec = await self._transactions.read(lambda session: _looked_up(session, new))
            return service_pb2.CreateJobResponse(
                job=job_pb2.Job(spec=spec, environment_description=new.description)
            )
        quota = self._orchestrator.quotas.of(new.project)

        def create(session: Session) -> job_pb2.Job:
            return self._message(session, jobs.create(session, new, self._clock.now(), quota))

        job = await self._transactions.write(create)
        current().set(job=job.name)
        return service_pb2.CreateJobResponse(job=job)

    async def GetJob(
        self, request: service_pb2.GetJobRequest, context: Context
    ) -> service_pb2.GetJobResponse:
        job = await self._transactions.read(
            lambda session: self._message(session, _named(session, request.name))
        )
        return service_pb2.GetJobResponse(job=job)

    async def ListJobs(
        self, request: service_pb2.ListJobsRequest, context: Context
    ) -> service_pb2.ListJobsResponse:
        project, size = names.parse_parent(request.parent), _page_size(request.page_size)
        states = [enum_name(job_pb2.JobState, state, "states") for state in request.states]
        wanted = parse_filter(request.filter)

        def operation(session: Session) -> service_pb2.ListJobsResponse:
            found = listing.after(session, project, states, wanted, request.page_token, size + 1)

            def message(job: JobRow) -> job_pb2.Job:
                return viewed(self._message(session, job), request.view)

            listed, token = page(found, size, message, lambda job: job.uid)
            return service_pb2.ListJobsResponse(jobs=listed, next_page_token=token)

        return await self._transactions.read(operation)

    async def UpdateJob(
        self, request: service_pb2.UpdateJobRequest, context: Context
    ) -> service_pb2.UpdateJobResponse:
        suspend = request.suspend if request.HasField("suspend") else None
        wanted = job_changes.JobChange(
            request.spec, tuple(request.update_mask.paths), suspend, request.etag
        )

        def operation(session: Session, job: JobRow) -> None:
            job_changes.change(session, job, wanted, self._clock.now())

        return service_pb2.UpdateJobResponse(job=await self._changed(request.name, operation))

    async def CancelJob(
        self, request: service_pb2.CancelJobRequest, context: Context
    ) -> service_pb2.CancelJobResponse:
        def operation(session: Session, job: JobRow) -> None:
            jobs.cancel(session, job, self._clock.now())

        return service_pb2.CancelJobResponse(job=await self._changed(request.name, operation))

    async def DeleteJob(
        self, request: service_pb2.DeleteJobRequest, context: Context
    ) -> service_pb2.DeleteJobResponse:
        def forget(session: Session) -> list[str]:
            return job_changes.forget_checkpoints(session, _named(session, request.name))

        # Objects before the job: should we die in between, the same call again finishes the
        # deletion.
        for objects in await self._transactions.write(forget):
            await asyncio.to_thread(self._orchestrator.store.delete_prefix, objects)
        await self._transactions.write(
            lambda session: job_changes.remove(session, _named(session, request.name))
        )
        return service_pb2.DeleteJobResponse()

    async def WatchJob(
        self, request: service_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[service_pb2.WatchJobResponse]:
        interval_s = (
            seconds_from_duration(request.min_interval)
            if request.HasField("min_interval")
            else None
        )
        interval_s = DEFAULT_INTERVAL_S if interval_s is None else max(MIN_INTERVAL_S, interval_s)
        job_uid = await self._transactions.read(lambda session: _named(session, request.name).uid)
        async for news in self._watcher.watch(job_uid, max(0, request.after_position), interval_s):
            yield news

    async def WatchJobs(
        self, request: service_pb2.WatchJobsRequest, context: Context
    ) -> AsyncIterator[service_pb2.WatchJobsResponse]:
        project = names.parse_parent(request.parent)
        async for news in self._watcher.watch_project(project, request.after_positions):
            if news.HasField("job"):
                news.job.CopyFrom(viewed(news.job, request.view))
            yield news

    async def ListPods(
        self, request: service_pb2.ListPodsRequest, context: Context
    ) -> service_pb2.ListPodsResponse:
        project, size = names.parse_parent(request.parent), _page_size(request.page_size)
        visible = current_caller().projects

        def operation(session: Session) -> service_pb2.ListPodsResponse:
            if request.job:
                of_job = pods.of_job(session, _named(session, request.job, "job"))
                found = [pod for pod in of_job if pod.name > request.page_token][: size + 1]
            else:
                found = list(pods.of_project(session, project, request.page_token, size + 1))
            uses, deadlines = pod_uses(self._orchestrator.pool_shares), self._orchestrator.deadlines
            messages = pod_messages(session, found, deadlines, uses, visible)
            listed, token = page(messages, size, lambda pod: pod, lambda pod: pod.name)
            return service_pb2.ListPodsResponse(pods=listed, next_page_token=token)

        return await self._transactions.read(operation)

    async def ListEvents(
        self, request: service_pb2.ListEventsRequest, context: Context
    ) -> service_pb2.ListEventsResponse:
        size = _page_size(request.page_size)

        def operation(session: Session) -> service_pb2.ListEventsResponse:
            job = _named(session, request.job, "job")
            found = outbox.after(session, job.uid, request.after_position, size + 1)
            listed, more = page(found, size, event_message, lambda event: str(event.position))
            return service_pb2.ListEventsResponse(events=listed, more=bool(more))

        return await self._transactions.read(operation)

    async def GetCapacity(
        self, request: service_pb2.GetCapacityRequest, context: Context
    ) -> service_pb2.GetCapacityResponse:
        project = names.parse_parent(request.parent)
        shares = self._orchestrator.pool_shares
        visible = current_caller().projects
        return await self._transactions.read(
            lambda session: capacity_message(session, shares, project, visible)
        )

    async def CollectCheckpoints(
        self, request: service_pb2.CollectCheckpointsRequest, context: Context
    ) -> service_pb2.CollectCheckpointsResponse:
        project = names.parse_parent(request.parent)
        found = await self._orchestrator.retention.collect(project, dry_run=request.validate_only)
        return service_pb2.CollectCheckpointsResponse(
            checkpoint_count=len(found.prefixes),
            size_bytes=found.size_bytes,
            prefixes=found.prefixes[:MAX_PAGE],
        )

    async def PromotePolicy(
        self, request: service_pb2.PromotePolicyRequest, context: Context
    ) -> service_pb2.PromotePolicyResponse:
        name = _alias_request(request)
        policy = await find_policy(
            self._transactions, self._orchestrator.board, name, request.policy
        )

        def operation(session: Session) -> service_pb2.Promotion:
            job = jobs.get(session, name.project, name.id)
            if not promotions.stack(
                session, job.uid, request.alias or promotions.default_alias(job)
            ):
                require(
                    session, name.project, self._orchestrator.quotas.of(name.project), "aliases"
                )
            row = promotions.promote(
                session,
                job,
                policy,
                self._clock.now(),
                alias=request.alias,
                reason=request.reason,
                request_id=request.request_id,
            )
            return promotion_message(row)

        return service_pb2.PromotePolicyResponse(
            promotion=await self._transactions.write(operation)
        )

    async def RollbackPolicy(
        self, request: service_pb2.RollbackPolicyRequest, context: Context
    ) -> service_pb2.RollbackPolicyResponse:
        name = _alias_request(request)

        def operation(session: Session) -> service_pb2.Promotion:
            job = jobs.get(session, name.project, name.id)
            row = promotions.rollback(
                session,
                job,
                self._clock.now(),
                alias=request.alias,
                reason=request.reason,
                request_id=request.request_id,
            )
            return promotion_message(row)

        return service_pb2.RollbackPolicyResponse(
            promotion=await self._transactions.write(operation)
        )

    async def ListPromotions(
        self, request: service_pb2.ListPromotionsRequest, context: Context
    ) -> service_pb2.ListPromotionsResponse:
        size = _page_size(request.page_size)

        def operation(session: Session) -> service_pb2.ListPromotionsResponse:
            job = _named(session, request.job, "job")
            found = promotions.before(session, job, request.alias, request.page_token, size + 1)
            listed, token = page(found, size, promotion_message, lambda row: str(row.position))
            return service_pb2.ListPromotionsResponse(promotions=listed, next_page_token=token)

        return await self._transactions.read(operation)

    async def ForkAgent(
        self, request: service_pb2.ForkAgentRequest, context: Context
    ) -> service_pb2.ForkAgentResponse:
        submission.check_length(request.request_id, "request_id", submission.MAX_REQUEST_ID)
        project = names.parse("agent", request.name).project
        quota = self._orchestrator.quotas.of(project)
        await self._transactions.read(lambda session: require(session, project, quota, "forks"))
        fork = leaderboard_pb2.ForkAgentRequest(
            name=request.name,
            hyperparameters=request.hyperparameters,
            request_id=request.request_id or secrets.token_hex(16),
        )
        return service_pb2.ForkAgentResponse(
            agent=await self._orchestrator.agent_acts.fork(fork, _caller())
        )

    async def PinAgent(
        self, request: service_pb2.PinAgentRequest, context: Context
    ) -> service_pb2.PinAgentResponse:
        await self._orchestrator.agent_acts.pin(request.name, _caller(), pinned=not request.unpin)
        return service_pb2.PinAgentResponse()

    async def StopAgent(
        self, request: service_pb2.StopAgentRequest, context: Context
    ) -> service_pb2.StopAgentResponse:
        await self._orchestrator.agent_acts.stop(request.name, _caller())
        return service_pb2.StopAgentResponse()

    async def _changed(
        self, name: str, operation: Callable[[Session, JobRow], None]
    ) -> job_pb2.Job:
        await self._transactions.write(lambda session: operation(session, _named(session, name)))
        # Read afterwards: the change may have ended the job (`ending.after_change`).
        return await self._transactions.read(
            lambda session: self._message(session, _named(session, name))
        )

    def _message(self, session: Session, job: JobRow) -> job_pb2.Job:
        return job_message(session, job, self._orchestrator.deadlines, self._clock.now())


def _caller() -> str:
    """The caller as text: role and name of its token, and its projects unless it is for all."""
    caller = current_caller()
    who = f"{caller.role} {caller.name}".rstrip()
    return who if caller.projects is None else f"{who} of {', '.join(sorted(caller.projects))}"


def _named(session: Session, text: str, field: str = "name") -> JobRow:
    name = names.parse("job", text, field)
    return jobs.get(session, name.project, name.id)


def _looked_up(session: Session, new: jobs.NewJob) -> job_pb2.JobSpec:
    """The spec with looked-up files, data sets and founders. Raises InvalidInput for missing
    ones."""
    spec = jobs.resolved(session, new.project, new.spec)
    founders.find(session, new.project, spec)
    return spec


def _alias_request(
    request: service_pb2.PromotePolicyRequest | service_pb2.RollbackPolicyRequest,
) -> names.Name:
    """The job's name. Raises InvalidInput for mistakes in the request itself."""
    if request.alias:
        names.check_label(request.alias, "alias")
    submission.check_length(request.request_id, "request_id", submission.MAX_REQUEST_ID)
    submission.check_length(request.reason, "reason", promotions.MAX_REASON)
    return names.parse("job", request.job, "job")


def _page_size(asked: int) -> int:
    if not 0 <= asked <= MAX_PAGE:
        message = f"is {asked}, expected 1 to {MAX_PAGE}, or 0 for {DEFAULT_PAGE}"
        raise InvalidInput(
            f"page_size {message}", violations=[FieldViolation("page_size", message)]
        )
    return asked or DEFAULT_PAGE
