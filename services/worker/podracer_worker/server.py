"""The worker's process: gRPC serves in threads beside the main thread, which collects."""

from __future__ import annotations

from functools import partial

from podracer.worker.v1 import worker_service_pb2_grpc
from podracer_core.rpc.auth import Authorizer
from podracer_core.rpc.server import RpcServer, create_server
from podracer_core.rpc.tokens import Role, TokenFiles
from podracer_core.rpc.work_queue import WorkQueue
from podracer_core.service.lifetime import stop_event_on_signals
from podracer_core.service.process import announce
from podracer_worker.config import WorkerConfig
from podracer_worker.service import WorkerService

__all__ = ["METHODS", "create_worker_server", "serve"]

METHODS = {
    "/podracer.worker.v1.WorkerService/Collect": (Role.POD,),
    "/podracer.worker.v1.WorkerService/PutFile": (Role.POD,),
    "/podracer.worker.v1.WorkerService/GetStatus": (Role.POD, Role.CONTROL),
}


def create_worker_server(config: WorkerConfig, work: WorkQueue) -> RpcServer:
    """A bound server whose sessions compute in whoever runs `work`."""
    service = WorkerService(work, config.max_sessions, config.device, config.file_cache(), config.shared_folder())
    server = create_server(
        config.listen,
        [partial(worker_service_pb2_grpc.add_WorkerServiceServicer_to_server, service)],
        Authorizer(METHODS, TokenFiles(config.tokens)),
        config.server_options(),
    )
    server.on_drain(service.drain)
    return server


def serve(config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    stop = stop_event_on_signals()
    work = WorkQueue()
    server = create_worker_server(config, work)
    server.start()
    announce(server.address)
    # Late: torch takes a second, and the learner can connect meanwhile.
    import podracer_worker.session  # noqa: F401 - else the first session would wait for it
    from podracer_core.device.torch_settings import set_up_torch
    from podracer_core.environments.registry import require_device

    set_up_torch(config.threads)
    try:
        if config.device != "auto":
            require_device(config.device)
        work.run(stop)
    finally:
        server.drain()
    return 0
