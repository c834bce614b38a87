"""The learner's process and its rpc methods: gRPC serves beside the main thread, which leases and
trains."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial

import grpc

from podracer.learner.v1 import learner_service_pb2, learner_service_pb2_grpc
from podracer.orchestrator.v1 import job_pb2, pod_service_pb2
from podracer_core.catalogue import (
    BUILT_IN_ENVIRONMENTS,
    evaluator_names,
    known_algorithms,
    known_environments,
)
from podracer_core.environments.processes import ChildOutput
from podracer_core.errors import FieldViolation, InvalidInput, Unavailable
from podracer_core.storage import ObjectStore
from podracer_learner.config import LearnerConfig
from podracer_learner.fusion import MAX_STREAMS, FollowerRegistry
from podracer_learner.lease import work_request
from podracer_learner.peers import Peers
from podracer_learner.round import Commands, LearnerStatus
from podracer_platform.rpc import (
    SERVER_THREADS,
    Authorizer,
    Backoff,
    Context,
    RpcServer,
    TokenFiles,
    create_server,
    methods_of,
)
from podracer_platform.service import announce, stop_event_on_signals
from podracer_platform.storage import open_store

logger = logging.getLogger(__name__)

_STORE_AWAY_S = (0.2, 5.0)


def create_learner_server(
    config: LearnerConfig, status: LearnerStatus, commands: Commands, followers: FollowerRegistry
) -> RpcServer:
    """A bound server that reports `status` and passes requests to `commands` and followers to
    `followers`."""
    service = LearnerService(status, commands, followers)
    server = create_server(
        config.listen,
        [partial(learner_service_pb2_grpc.add_LearnerServiceServicer_to_server, service)],
        Authorizer(methods_of("learner"), TokenFiles(config.tokens)),
        replace(config.server_options(), concurrent_calls=SERVER_THREADS + MAX_STREAMS),
    )
    server.on_drain(followers.drain)
    return server


def serve(config: LearnerConfig) -> int:
    """Serve and work until SIGTERM or SIGINT, or until the orchestrator says EXIT. Call it from the
    main thread."""
    _check(config)
    stop = stop_event_on_signals()
    ChildOutput.is_kept = True
    status, commands, followers = LearnerStatus(), Commands(), FollowerRegistry()
    peers = Peers(config)
    # connects while torch is imported
    peers.orchestrator.subscribe(lambda _: None, try_to_connect=True)
    server = create_learner_server(config, status, commands, followers)
    server.start()
    announce(server.address)
    from podracer_core.device import set_up_torch
    from podracer_core.environments import require_device  # late: torch takes a second
    from podracer_learner.loop import LeaseLoop

    set_up_torch(config.threads, config.cpu_products)
    try:
        if config.device != "auto":
            require_device(config.device)
        address = config.reachable_address(server.address)
        request = work_request(config.pod_name(), address, _capabilities(config))
        store = open_store(config.store, leased=True)
        _await_store(store, server, stop)
        LeaseLoop(config, peers, store, status, commands, followers, request).run(stop)
    finally:
        peers.close()
        server.drain(0.5)
    return 0


def _await_store(store: ObjectStore, server: RpcServer, stop: threading.Event) -> None:
    """Wait for the store before becoming ready: without it, leased work could only be handed
    back."""
    waits, problem = Backoff(*_STORE_AWAY_S), ""
    while not stop.is_set():
        try:
            store.check()
        except Unavailable as error:
            if error.message != problem:
                logger.warning("not ready: the object store: %s", error.message)
            problem = error.message
            server.set_ready(False)
            stop.wait(next(waits))
        else:
            if problem:
                logger.info("ready")
            server.set_ready(True)
            return


def _check(config: LearnerConfig) -> None:
    """Raises InvalidInput if a setting that the layout needs is missing."""
    missing = [
        FieldViolation(f"PODRACER_{name.upper()}", "needed where PODRACER_LAYOUT is split")
        for name in ("workers", "evaluators")
        if config.layout == "split" and not getattr(config, name)
    ]
    if missing:
        raise InvalidInput(
            "; ".join(map(str, missing)), violations=missing, reason="INVALID_SETTING"
        )


def _capabilities(config: LearnerConfig) -> pod_service_pb2.PodCapabilities:
    import torch

    from podracer_core.device import total_bytes

    split = config.layout == "split"
    return pod_service_pb2.PodCapabilities(
        layout=job_pb2.POD_LAYOUT_SPLIT if split else job_pb2.POD_LAYOUT_FUSED,
        gpus=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        memory_bytes=total_bytes(),
        algorithms=known_algorithms(),
        environments=known_environments().keys() - BUILT_IN_ENVIRONMENTS.keys(),
        evaluators=evaluator_names(),
        allows_user_code=config.runs_user_code,
        can_fuse=True,
    )


class LearnerService(learner_service_pb2_grpc.LearnerServiceServicer):
    """Requests to the cohort run in the main thread between two updates (`Commands`)."""

    def __init__(
        self, status: LearnerStatus, commands: Commands, followers: FollowerRegistry
    ) -> None:
        self._status, self._commands, self._followers = status, commands, followers

    def GetStatus(
        self, request: learner_service_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> learner_service_pb2.GetStatusResponse:
        return self._status.answer

    def FetchPolicy(
        self, request: learner_service_pb2.FetchPolicyRequest, context: grpc.ServicerContext
    ) -> Iterator[learner_service_pb2.FetchPolicyResponse]:
        from podracer_platform.carriers import TensorEncoder, chunk_messages  # late: torch

        agents, version, tensors = self._commands.fetch_policy(request.agent)
        messages, chunks = TensorEncoder().encode(tensors)
        snapshot = learner_service_pb2.PolicySnapshot(
            agents=agents, policy_version=version, tensors=messages
        )
        yield learner_service_pb2.FetchPolicyResponse(snapshot=snapshot)
        yield from chunk_messages(learner_service_pb2.FetchPolicyResponse, chunks)

    async def Fuse(  # type: ignore[override]
        self, request_iterator: AsyncIterator[learner_service_pb2.FuseRequest], context: Context
    ) -> None:
        await self._followers.serve(request_iterator, context)

    def Checkpoint(
        self, request: learner_service_pb2.CheckpointRequest, context: grpc.ServicerContext
    ) -> learner_service_pb2.CheckpointResponse:
        return learner_service_pb2.CheckpointResponse(
            checkpoints=self._commands.checkpoint(list(request.agents))
        )
