"""The health of a process, without a token: `grpc.health.v1` on its own server, and on a port for health alone.

That port (PODRACER_HEALTH_LISTEN) is plain text without a token, as the probes of a kubelet or container engine have
neither token nor certificate. It may listen beyond this machine, as it returns only a status.

    ""          readiness: the server serves, and its dependencies answer; not while it drains
    liveness    the process answers, also while it drains
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from podracer_core.rpc.binding import bind, prepare_address

READINESS, LIVENESS = "", "liveness"

_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
_CALLS = 16
"""The most concurrent calls on the port for health alone, which asks for no token."""
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4096))
_STOP_S = 0.2


class Health:
    """The health of a server of threads. Not ready before `set_ready(True)`."""

    def __init__(self, services: Sequence[str], address: str = "") -> None:
        """`services`: names that are ready when the server is; `address`: of the port for health alone, "": none.

        Raises InvalidInput if it cannot listen there.
        """
        self._names = (READINESS, *services)
        self.servicer = health.HealthServicer(
            experimental_thread_pool=futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="rpc-health")
        )
        self.servicer.set(LIVENESS, _SERVING)
        self.set_ready(False)
        self._server: grpc.Server | None = None
        self.address = ""
        if address:
            threads = futures.ThreadPoolExecutor(max_workers=2, thread_name_prefix="health-port")
            self._server = grpc.server(threads, options=_OPTIONS, maximum_concurrent_rpcs=_CALLS)
            health_pb2_grpc.add_HealthServicer_to_server(self.servicer, self._server)
            self.address = bind(self._server, prepare_address(address, is_harmless=True), None)
            self._server.start()

    def set_ready(self, ready: bool) -> None:
        for name in self._names:
            self.servicer.set(name, _SERVING if ready else _NOT_SERVING)

    def close(self) -> None:
        """Close the health port."""
        if self._server is not None:
            self._server.stop(_STOP_S).wait()


class AioHealth:
    """The health of an asyncio server. Not ready before `start`. The port answers only while the event loop runs."""

    def __init__(self, services: Sequence[str], address: str = "") -> None:
        """See Health."""
        self._names = (READINESS, *services)
        self.servicer = health.aio.HealthServicer()
        self._draining = False
        self._server: grpc.aio.Server | None = None
        self.address = ""
        if address:
            self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_CALLS)
            health_pb2_grpc.add_HealthServicer_to_server(self.servicer, self._server)
            self.address = bind(self._server, prepare_address(address, is_harmless=True), None)

    async def open(self) -> None:
        """Open the port: alive, but not ready."""
        await self.servicer.set(LIVENESS, _SERVING)
        await self.set_ready(False)
        if self._server is not None:
            await self._server.start()

    async def set_ready(self, ready: bool) -> None:
        """A draining server stays not ready."""
        for name in self._names:
            await self.servicer.set(name, _SERVING if ready and not self._draining else _NOT_SERVING)

    async def drain(self) -> None:
        """Become not ready, permanently."""
        self._draining = True
        await self.set_ready(False)

    async def close(self) -> None:
        """Close the health port."""
        if self._server is not None:
            await self._server.stop(_STOP_S)
