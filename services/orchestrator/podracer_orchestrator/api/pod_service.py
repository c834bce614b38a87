"""PodService: work for pods. Decodes, asks the domain, encodes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import grpc

from podracer.orchestrator.v1 import job_pb2, pod_service_pb2_grpc
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import PermissionRefused, PreconditionFailed
from podracer_orchestrator.api.messages import enum_name
from podracer_orchestrator.dispatch import Ask, Capabilities, Dispatcher, LeaseOperations
from podracer_orchestrator.leases import Holder, LeaseDeadlines, LiveReport
from podracer_orchestrator.pool import PodReport
from podracer_orchestrator.stored_messages import encode, timestamp
from podracer_orchestrator.transactions import Clock
from podracer_orchestrator.works import member_commit
from podracer_platform.messages import seconds_from_duration, seconds_to_duration
from podracer_platform.rpc import current_caller
from podracer_platform.rpc import resource_names as names
from podracer_platform.service import is_compatible, own_build

DEFAULT_WAIT_S = 20.0
MAX_WAIT_S = 30.0

Context = grpc.aio.ServicerContext[Any, Any]


class PodServicer(pod_service_pb2_grpc.PodServiceServicer):
    """Answers learners."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        operations: LeaseOperations,
        deadlines: LeaseDeadlines,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._operations = operations
        self._deadlines = deadlines
        self._clock = clock

    async def LeaseWork(
        self, request: pod_pb2.LeaseWorkRequest, context: Context
    ) -> pod_pb2.LeaseWorkResponse:
        return pod_pb2.LeaseWorkResponse(lease=await self._lease(request))

    async def RenewLease(
        self, request: pod_pb2.RenewLeaseRequest, context: Context
    ) -> pod_pb2.RenewLeaseResponse:
        if not 0.0 <= request.env_steps_per_second < math.inf:
            raise names.wrong_field("env_steps_per_second", "expected a number of 0 or more")
        live = LiveReport(
            {member.agent: member.env_steps for member in request.members},
            request.env_steps_per_second,
            self._clock.now(),
        )
        action = await self._operations.renew(
            _holder(request), live, request.evaluations, request.breaks
        )
        return pod_pb2.RenewLeaseResponse(
            action=action,
            term=seconds_to_duration(self._deadlines.term_s),
            admission_score=self._dispatcher.admission_score(request.fence),
        )

    async def WatchLease(
        self, request: pod_pb2.WatchLeaseRequest, context: Context
    ) -> AsyncIterator[pod_pb2.WatchLeaseResponse]:
        async for action in self._operations.orders.watch(_holder(request).fence):
            yield pod_pb2.WatchLeaseResponse(action=action)

    async def CommitCheckpoint(
        self, request: pod_pb2.CommitCheckpointRequest, context: Context
    ) -> pod_pb2.CommitCheckpointResponse:
        await self._operations.commit(
            _holder(request), [member_commit(member) for member in request.members]
        )
        return pod_pb2.CommitCheckpointResponse(commit_time=timestamp(self._clock.now()))

    async def CompleteWork(
        self, request: pod_pb2.CompleteWorkRequest, context: Context
    ) -> pod_pb2.CompleteWorkResponse:
        kind = request.WhichOneof("result")
        if kind is None:
            raise names.wrong_field("result", "expected train, evaluate, inspect or problem")
        holder = _holder(request)
        if request.HasField("next") and request.next.pod != (
            pod := await self._operations.pod_of(holder)
        ):
            message = f"the lease is {pod}'s, the next work is asked for {request.next.pod}"
            raise PermissionRefused(message, reason="WRONG_POD")
        await self._operations.complete(holder, getattr(request, kind))
        if not request.HasField("next"):
            return pod_pb2.CompleteWorkResponse()
        return pod_pb2.CompleteWorkResponse(next=await self._lease(request.next))

    async def ReleaseLease(
        self, request: pod_pb2.ReleaseLeaseRequest, context: Context
    ) -> pod_pb2.ReleaseLeaseResponse:
        await self._operations.release(_holder(request), request.reason)
        return pod_pb2.ReleaseLeaseResponse()

    async def GetStoreAccess(
        self, request: pod_pb2.GetStoreAccessRequest, context: Context
    ) -> pod_pb2.GetStoreAccessResponse:
        return await self._operations.access.grant(_holder(request), request)

    async def _lease(self, request: pod_pb2.LeaseWorkRequest) -> pod_pb2.Lease | None:
        wait_s = seconds_from_duration(request.wait) if request.HasField("wait") else DEFAULT_WAIT_S
        return await self._dispatcher.lease(_ask(request), min(MAX_WAIT_S, max(0.0, wait_s)))


def _ask(request: pod_pb2.LeaseWorkRequest) -> Ask:
    names.parse("pod", request.pod, "pod")
    for field in ("request_id", "instance_id"):
        if not 0 < len(getattr(request, field)) <= 128:
            raise names.wrong_field(field, "expected a random text of at most 128 characters")
    if request.HasField("build") and not is_compatible(request.build):
        own = own_build()
        raise PreconditionFailed(
            f"this orchestrator is build {own.version}, the pod {request.pod} is "
            f"{request.build.version or 'unknown'}; they may be one minor version apart",
            reason="BUILD_MISMATCH",
        )
    layout = enum_name(job_pb2.PodLayout, request.capabilities.layout, "capabilities.layout")
    report = PodReport(
        name=request.pod,
        instance_id=request.instance_id,
        layout="" if layout == "UNSPECIFIED" else layout,
        address=request.address,
        build=encode(request.build),
    )
    return Ask(report, request.request_id, Capabilities.from_message(request.capabilities))


def _holder(
    request: pod_pb2.RenewLeaseRequest
    | pod_pb2.WatchLeaseRequest
    | pod_pb2.CommitCheckpointRequest
    | pod_pb2.CompleteWorkRequest
    | pod_pb2.ReleaseLeaseRequest
    | pod_pb2.GetStoreAccessRequest,
) -> Holder:
    """The lease that a call names; its token must be that lease's."""
    name, caller = names.parse("lease", request.lease, "lease"), current_caller()
    lease_id = name.id
    if (caller.lease_id, caller.fence) != (lease_id, request.fence):
        raise PermissionRefused(
            f"this token is for lease {caller.lease_id} with fence {caller.fence}, not for "
            f"{lease_id} with fence {request.fence}",
            reason="WRONG_LEASE",
        )
    return Holder(lease_id, request.fence, name.project)
