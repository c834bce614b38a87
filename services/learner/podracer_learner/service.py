"""The learner's rpc methods."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer_core.service.build import own_build
from podracer_learner.commands import Commands
from podracer_learner.fusion_desk import FusionDesk
from podracer_learner.status import LearnerStatus

__all__ = ["LearnerService"]


class LearnerService(learner_service_pb2_grpc.LearnerServiceServicer):
    """What touches the cohort is done by the main thread between two updates (`Commands`)."""

    def __init__(self, status: LearnerStatus, commands: Commands, desk: FusionDesk) -> None:
        self._status, self._commands, self._desk = status, commands, desk

    def GetStatus(  # noqa: N802 - the name in the contract
        self, request: learner_service_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> learner_service_pb2.GetStatusResponse:
        now = self._status.presence
        return learner_service_pb2.GetStatusResponse(
            build=own_build(),
            state=now.state,
            lease=now.lease,
            fence=now.fence,
            agents=now.agents,
            updates=now.updates,
            env_steps=now.env_steps,
            env_steps_per_second=now.env_steps_per_second,
            worker_count=now.worker_count,
            evaluator_count=now.evaluator_count,
            policy_version=now.policy_version,
            staleness=now.staleness,
        )

    def FetchPolicy(  # noqa: N802 - the name in the contract
        self, request: learner_service_pb2.FetchPolicyRequest, context: grpc.ServicerContext
    ) -> Iterator[learner_service_pb2.FetchPolicyResponse]:
        from podracer_core.carriers.inline import TensorEncoder  # late: it imports torch

        agents, version, tensors = self._commands.fetch_policy(request.agent)
        messages, chunks = TensorEncoder().encode(tensors)
        snapshot = learner_service_pb2.PolicySnapshot(agents=agents, policy_version=version, tensors=messages)
        yield learner_service_pb2.FetchPolicyResponse(snapshot=snapshot)
        for chunk in chunks:
            yield learner_service_pb2.FetchPolicyResponse(chunk=chunk)

    def Fuse(  # noqa: N802 - the name in the contract
        self, request_iterator: Iterator[learner_service_pb2.FuseRequest], context: grpc.ServicerContext
    ) -> Iterator[learner_service_pb2.FuseResponse]:
        return self._desk.serve(request_iterator, context)

    def Checkpoint(  # noqa: N802 - the name in the contract
        self, request: learner_service_pb2.CheckpointRequest, context: grpc.ServicerContext
    ) -> learner_service_pb2.CheckpointResponse:
        return learner_service_pb2.CheckpointResponse(checkpoints=self._commands.checkpoint(list(request.agents)))
