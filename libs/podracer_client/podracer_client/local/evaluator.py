"""A private evaluator process does the work that needs torch, so that this process does not import
it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from podracer.evaluator.v1 import evaluator_service_pb2_grpc
from podracer_client.local.services import inherited_environment, require_services
from podracer_client.processes.process import ManagedProcess, ProcessPlan
from podracer_client.processes.run_folder import RunFolder
from podracer_core.rpc.channel import open_channel
from podracer_core.rpc.tokens import FileToken, Role, create_tokens

_READY_TIMEOUT_S = 60.0
_STOP_S = 1.0


@contextmanager
def private_evaluator() -> Iterator[evaluator_service_pb2_grpc.EvaluatorServiceStub]:
    """Start an evaluator with its own socket and token, which may read this user's folders.

    Raises Unavailable if it cannot start, PreconditionFailed if it is not installed.
    """
    require_services("evaluator")
    with RunFolder() as run_folder:
        token = create_tokens(run_folder.path / "tokens")[Role.POD]
        plan = ProcessPlan(
            "evaluator",
            (sys.executable, "-P", "-m", "podracer_evaluator"),
            {
                **inherited_environment(),
                "PODRACER_LISTEN": run_folder.socket("evaluator"),
                "PODRACER_TOKENS": str(token.parent),
                "PODRACER_ALLOW_FOLDERS": "true",
                "PODRACER_CACHE_DIR": str(run_folder.path / "cache"),
            },
            run_folder.path / "evaluator.log",
            restarts=0,
            log_lasts=False,
        )
        process = ManagedProcess(plan)
        process.start()
        try:
            with open_channel(process.wait_ready(_READY_TIMEOUT_S), FileToken(token)) as channel:
                yield evaluator_service_pb2_grpc.EvaluatorServiceStub(channel)
        finally:
            process.stop(_STOP_S)
