"""The orchestrator's process: one asyncio loop with the server, the database and the pool."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

from podracer.orchestrator.v1.artifact_service_pb2_grpc import add_ArtifactServiceServicer_to_server
from podracer.orchestrator.v1.job_service_pb2_grpc import add_JobServiceServicer_to_server
from podracer.orchestrator.v1.pod_service_pb2_grpc import add_PodServiceServicer_to_server
from podracer_orchestrator.api import artifact_service, job_service, pod_service
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.orchestrator import Orchestrator
from podracer_platform.kubernetes.active_label import keep_active_label
from podracer_platform.rpc.aio_server import AioRpcServer, Readiness, create_aio_server
from podracer_platform.rpc.auth import Authorizer, methods_of
from podracer_platform.rpc.tokens import TokenFiles
from podracer_platform.service.lifetime import unless
from podracer_platform.service.process import announce


class OrchestratorServer:
    """A bound server with the orchestrator behind it; `address` is what to call."""

    def __init__(self, rpc: AioRpcServer, orchestrator: Orchestrator, instance: str = "") -> None:
        self.address = rpc.address
        self.orchestrator = orchestrator
        self._rpc = rpc
        self._instance = instance
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take up the work, then serve: a lease's holder must not call before its lease is known
        again."""
        await self.orchestrator.start(self.address)
        await self._rpc.start()
        labelling = keep_active_label(self._instance, self.orchestrator.transactions.check)
        for work in (Readiness(self._rpc, self.orchestrator.needs).run(), labelling):
            self._tasks.append(asyncio.create_task(work))

    async def stop(self, grace_s: float = 0.4) -> None:
        """Stop the pods while calls are still served, then the calls, then the rest."""
        for task in self._tasks:
            task.cancel()
        await self._rpc.drain(grace_s)
        await self.orchestrator.close()


async def create_server(config: OrchestratorConfig) -> tuple[OrchestratorServer, str]:
    """A server, bound but not serving yet, and its address. Raises a PodracerError that says what
    is wrong."""
    tokens = TokenFiles(config.tokens)
    orchestrator = await Orchestrator.open(config)
    job_servicer = job_service.JobServicer(orchestrator)
    pod_servicer = pod_service.PodServicer(
        orchestrator.dispatcher,
        orchestrator.lease_operations,
        orchestrator.deadlines,
        orchestrator.clock,
    )
    artifact_servicer = artifact_service.ArtifactServicer(
        orchestrator.transactions,
        orchestrator.store,
        orchestrator.uploads,
        orchestrator.clock,
        orchestrator.quotas,
    )
    try:
        rpc = await create_aio_server(
            config.listen,
            [
                partial(add_JobServiceServicer_to_server, job_servicer),
                partial(add_PodServiceServicer_to_server, pod_servicer),
                partial(add_ArtifactServiceServicer_to_server, artifact_servicer),
            ],
            Authorizer(methods_of("orchestrator"), tokens, orchestrator.lease_tokens),
            config.server_options(),
        )
    except BaseException:
        await orchestrator.close()
        raise
    rpc.on_drain(orchestrator.stop_pods)
    rpc.on_drain(job_servicer.drain)
    server = OrchestratorServer(rpc, orchestrator, config.instance)
    return server, server.address


def serve(config: OrchestratorConfig) -> int:
    """Serve until SIGTERM or SIGINT. Call it from the main thread: the pods end with that thread.

    The exit status is 1 if a task of the orchestrator failed; the launcher then restarts it.
    """
    return asyncio.run(_serve(config))


async def _serve(config: OrchestratorConfig) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    created = await unless(stop, create_server(config))
    if created is None:
        return 0  # while another process was the active one
    server, address = created
    failed = server.orchestrator.failed
    failed.add_done_callback(lambda _: stop.set())
    await server.start()
    announce(address)
    await stop.wait()
    await server.stop()
    return 1 if failed.done() else 0
