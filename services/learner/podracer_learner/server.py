"""The learner's process: gRPC serves in threads beside the main thread, which leases and trains."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial

from podracer.learner.v1 import learner_service_pb2_grpc
from podracer.orchestrator.v1 import job_pb2, pod_service_pb2
from podracer_core.errors import FieldViolation, InvalidInput, Unavailable
from podracer_core.rpc.auth import Authorizer
from podracer_core.rpc.backoff import Backoff
from podracer_core.rpc.limits import SERVER_THREADS
from podracer_core.rpc.server import RpcServer, create_server
from podracer_core.rpc.tokens import Role, TokenFiles
from podracer_core.service.lifetime import stop_event_on_signals
from podracer_core.service.process import announce
from podracer_core.storage import ObjectStore, open_store
from podracer_learner.commands import Commands
from podracer_learner.config import LearnerConfig
from podracer_learner.control import work_request
from podracer_learner.fusion_desk import MAX_STREAMS, FusionDesk
from podracer_learner.peers import Peers
from podracer_learner.service import LearnerService
from podracer_learner.status import LearnerStatus

__all__ = ["METHODS", "create_learner_server", "serve"]

logger = logging.getLogger(__name__)

_STORE_AWAY_S = (0.2, 5.0)
_SERVICE = "/podracer.learner.v1.LearnerService"
METHODS = {
    f"{_SERVICE}/GetStatus": (Role.POD, Role.CLIENT, Role.CONTROL),
    f"{_SERVICE}/FetchPolicy": (Role.POD,),
    f"{_SERVICE}/Fuse": (Role.POD,),
    f"{_SERVICE}/Checkpoint": (Role.POD, Role.CONTROL),
}


def create_learner_server(
    config: LearnerConfig, status: LearnerStatus, commands: Commands, desk: FusionDesk
) -> RpcServer:
    """A bound server that tells `status`, hands requests to `commands`, and sends followers to `desk`."""
    service = LearnerService(status, commands, desk)
    server = create_server(
        config.listen,
        [partial(learner_service_pb2_grpc.add_LearnerServiceServicer_to_server, service)],
        Authorizer(METHODS, TokenFiles(config.tokens)),
        config.server_options(SERVER_THREADS + MAX_STREAMS),
    )
    server.on_drain(desk.drain)
    return server


def serve(config: LearnerConfig) -> int:
    """Serve and work until SIGTERM or SIGINT, or until the orchestrator says EXIT. Only from the main thread."""
    _check(config)
    stop = stop_event_on_signals()
    status, commands, desk = LearnerStatus(), Commands(), FusionDesk()
    peers = Peers(config)
    peers.orchestrator.subscribe(lambda _: None, try_to_connect=True)  # connects while torch is imported
    server = create_learner_server(config, status, commands, desk)
    server.start()
    announce(server.address)
    from podracer_core.device.torch_settings import set_up_torch
    from podracer_core.environments.registry import require_device  # late: torch takes a second
    from podracer_learner.loop import LeaseLoop

    set_up_torch(config.threads)
    try:
        if config.device != "auto":
            require_device(config.device)
        address = config.reachable_address(server.address)
        request = work_request(config.pod_name(), address, _capabilities(config))
        store = open_store(config.store)
        _await_store(store, server, stop)
        LeaseLoop(config, peers, store, status, commands, desk, request).run(stop)
    finally:
        peers.close()
        server.drain(0.5)
    return 0


def _await_store(store: ObjectStore, server: RpcServer, stop: threading.Event) -> None:
    """Not ready while the store is away: work leased meanwhile could only be handed back."""
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
    """Raises InvalidInput where the layout lacks what it needs."""
    missing = [
        FieldViolation(f"PODRACER_{name.upper()}", "needed where PODRACER_LAYOUT is split")
        for name in ("workers", "evaluators")
        if config.layout == "split" and not getattr(config, name)
    ]
    if missing:
        raise InvalidInput("; ".join(map(str, missing)), violations=missing, reason="INVALID_SETTING")


def _capabilities(config: LearnerConfig) -> pod_service_pb2.PodCapabilities:
    import torch

    split = config.layout == "split"
    return pod_service_pb2.PodCapabilities(
        layout=job_pb2.POD_LAYOUT_SPLIT if split else job_pb2.POD_LAYOUT_FUSED,
        cpu_threads=torch.get_num_threads(),
        gpus=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        worker_count=len(config.workers),
        allows_user_code=split or config.allow_user_code,
        can_fuse=True,
    )
