"""The policy server's rpc methods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from podracer.common.v1 import cohort_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer.policy.v1.policy_service_pb2_grpc import PolicyServiceServicer
from podracer_core.errors import PermissionRefused, PodracerError
from podracer_platform.rpc.auth import current_caller
from podracer_platform.telemetry.metrics import POLICY_LOADS
from podracer_policy.batching import Batcher, ServedPolicies
from podracer_policy.messages import masks_of, observations_of, policy_message, response_of
from podracer_policy.policy import ServedPolicy, require_word
from podracer_policy.sources import received_policy

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

SERVICE = "/podracer.policy.v1.PolicyService"
_IN_FLIGHT = 64
"""Requests of one stream that are not answered yet; further ones are not read."""


class PolicyService(PolicyServiceServicer):
    """Asynchronous; long operations (calls of large networks, loading) run in threads."""

    def __init__(self, policies: ServedPolicies, batcher: Batcher) -> None:
        self._policies, self._batcher = policies, batcher
        self._readers: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    async def drain(self) -> None:
        """Let every stream read no further; requests that were read are answered."""
        for reader in self._readers:
            reader.cancel()

    async def Act(self, request: pb.ActRequest, context: Context) -> pb.ActResponse:
        return await self._act(request, context.time_remaining())

    async def ActStream(
        self, request_iterator: AsyncIterator[pb.ActStreamRequest], context: Context
    ) -> AsyncIterator[pb.ActStreamResponse]:
        answers: asyncio.Queue[asyncio.Task[pb.ActStreamResponse] | None] = asyncio.Queue()
        room = asyncio.Semaphore(_IN_FLIGHT)
        drained = False

        async def read() -> None:
            nonlocal drained
            try:
                async for request in request_iterator:
                    await room.acquire()
                    answers.put_nowait(asyncio.create_task(self._answer(request)))
            except asyncio.CancelledError:
                drained = True
            finally:
                answers.put_nowait(None)

        reader = asyncio.create_task(read())
        self._readers.add(reader)
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                room.release()
            if drained:
                yield pb.ActStreamResponse(draining=True)
            await reader
        finally:
            self._readers.discard(reader)
            reader.cancel()
            while not answers.empty():
                if (left := answers.get_nowait()) is not None:
                    left.cancel()

    async def ListPolicies(
        self, request: pb.ListPoliciesRequest, context: Context
    ) -> pb.ListPoliciesResponse:
        found = [policy for policy in self._policies.present() if _is_for_caller(policy)]
        return pb.ListPoliciesResponse(
            policies=[policy_message(policy, self._policies) for policy in found]
        )

    async def GetPolicy(
        self, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        return pb.GetPolicyResponse(policy=policy_message(self._find(request.name), self._policies))

    async def LoadPolicy(
        self, request_iterator: AsyncIterator[pb.LoadPolicyRequest], context: Context
    ) -> pb.LoadPolicyResponse:
        async with self._loading:
            try:
                policy = await received_policy(request_iterator)
                _require_own(policy)
                policy = self._policies.put(policy)
            except PodracerError:
                POLICY_LOADS.add(result="failed")
                raise
        POLICY_LOADS.add(result="done")
        return pb.LoadPolicyResponse(policy=policy_message(policy, self._policies))

    async def UnloadPolicy(
        self, request: pb.UnloadPolicyRequest, context: Context
    ) -> pb.UnloadPolicyResponse:
        require_word("name", request.name)
        self._find(request.name)
        self._policies.remove(request.name)
        return pb.UnloadPolicyResponse()

    async def _act(self, request: pb.ActRequest, remaining_s: float | None) -> pb.ActResponse:
        deadline = None if remaining_s is None else time.monotonic() + remaining_s
        policy = self._find(request.policy, request.version)
        observations, alone = observations_of(request, policy)
        masks = masks_of(request, policy, len(observations))
        actions = await self._batcher.act(policy, observations, masks, deadline)
        return response_of(actions, request, policy, alone=alone)

    async def _answer(self, request: pb.ActStreamRequest) -> pb.ActStreamResponse:
        try:
            return pb.ActStreamResponse(
                request_id=request.request_id, act=await self._act(request.act, None)
            )
        except PodracerError as error:
            problem = cohort_pb2.Problem(reason=error.reason, message=error.message)
            return pb.ActStreamResponse(request_id=request.request_id, problem=problem)

    def _find(self, name: str, version: str = "") -> ServedPolicy:
        policy = self._policies.find(name, version, _is_for_caller)
        _require_own(policy)
        return policy


def _is_for_caller(policy: ServedPolicy) -> bool:
    """Whether the caller's token is for the projects that its agents are of."""
    projects = current_caller().projects
    return projects is None or policy.projects <= projects


def _require_own(policy: ServedPolicy) -> None:
    if not _is_for_caller(policy):
        message = f"the policy {policy.name} is of a project that this token is not for"
        raise PermissionRefused(message, reason="OTHER_PROJECT")
