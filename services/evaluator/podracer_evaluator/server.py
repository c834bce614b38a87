"""The evaluator's process: gRPC serves in threads beside the main thread, which computes."""

from __future__ import annotations

import threading
from functools import partial

from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer_core.rpc.auth import Authorizer
from podracer_core.rpc.server import RpcServer, create_server
from podracer_core.rpc.tokens import Role, TokenFiles
from podracer_core.rpc.work_queue import WorkQueue
from podracer_core.service.lifetime import stop_event_on_signals
from podracer_core.service.process import announce
from podracer_evaluator.config import EvaluatorConfig
from podracer_evaluator.service import EvaluatorService

__all__ = ["METHODS", "create_evaluator_server", "serve"]

_SERVICE = "/podracer.evaluator.v1.EvaluatorService"
METHODS = {
    f"{_SERVICE}/Evaluate": (Role.POD,),
    f"{_SERVICE}/EvaluateCheckpoint": (Role.POD, Role.CONTROL),
    f"{_SERVICE}/Backtest": (Role.POD, Role.CONTROL),
    f"{_SERVICE}/Inspect": (Role.POD, Role.CONTROL),
    f"{_SERVICE}/ExportPolicy": (Role.POD, Role.CONTROL),
    f"{_SERVICE}/PutFile": (Role.POD, Role.CONTROL),
    f"{_SERVICE}/GetStatus": (Role.POD, Role.CONTROL),
}


def create_evaluator_server(config: EvaluatorConfig, work: WorkQueue, stop: threading.Event) -> RpcServer:
    """A bound server whose computations run in whoever runs `work`; long ones are given up once `stop` is set."""
    service = EvaluatorService(work, config, config.file_cache(), stop)
    server = create_server(
        config.listen,
        [partial(evaluator_service_pb2_grpc.add_EvaluatorServiceServicer_to_server, service)],
        Authorizer(METHODS, TokenFiles(config.tokens)),
        config.server_options(),
    )
    server.on_drain(service.drain)
    return server


def serve(config: EvaluatorConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    stop = stop_event_on_signals()
    work = WorkQueue()
    server = create_evaluator_server(config, work, stop)
    server.start()
    announce(server.address)
    # Late: torch takes a second, and the learner can connect meanwhile.
    import podracer_evaluator.session  # noqa: F401 - else the first session would wait for it
    from podracer_core.device.torch_settings import set_up_torch

    set_up_torch(config.threads)
    work.run(stop)
    server.drain()
    return 0
