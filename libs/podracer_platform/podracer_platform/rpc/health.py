"""The health of a process, without a token: `grpc.health.v1` on its own server, and on a port for
health alone.

That port (PODRACER_HEALTH_LISTEN) is plain text without a token, as the probes of a kubelet or
container engine have neither token nor certificate. It may listen beyond this machine, as it
returns only a status.

    ""          readiness: the server serves, and its dependencies answer; not while it drains
    liveness    the process answers, also while it drains

Only `Check` is served, from the event loop that it reports on. Its request has to arrive at once,
so that callers who keep theirs back hold nothing and delay no probe."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from podracer_platform.rpc.binding import bind, prepare_address

READINESS, LIVENESS = "", "liveness"
SERVICE = "grpc.health.v1.Health"
CHECK = f"/{SERVICE}/Check"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_REQUEST_S, _REQUEST_BYTES = 2.0, 4096
_WAITING = 16
"""The most checks whose request has not arrived; one more ends the oldest."""
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _REQUEST_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_concurrent_streams", _WAITING),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 2_000),
    ("grpc.server_handshake_timeout_ms", 5_000),
)
_STOP_S = 0.2
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Health:
    """The health of a server. Not ready before `set_ready(True)`. The port answers only while the
    event loop runs."""

    def __init__(self, services: Sequence[str] = (), address: str = "") -> None:
        """`services`: names that are ready when the server is; `address`: of the port for health
        alone, "": none.

        Raises InvalidInput if it cannot listen there.
        """
        self._names = (READINESS, *services)
        self._ready = self._draining = False
        self._waiting: deque[asyncio.Timeout] = deque()
        self._server: grpc.aio.Server | None = None
        self.address = ""
        if address:
            self._server = grpc.aio.server(options=_OPTIONS)
            self.register(self._server)
            self.address = bind(self._server, prepare_address(address, is_harmless=True), None)

    def register(self, server: grpc.aio.Server) -> None:
        """Serve `Check`."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
            self._check, None, health_pb2.HealthCheckResponse.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Check": handler}),)
        )

    async def open(self) -> None:
        """Open the port: alive, but not ready."""
        if self._server is not None:
            await self._server.start()

    def set_ready(self, ready: bool) -> None:
        """A draining server stays not ready."""
        self._ready = ready and not self._draining

    def drain(self) -> None:
        """Become not ready, permanently."""
        self._ready, self._draining = False, True

    async def close(self) -> None:
        """Close the health port."""
        if self._server is not None:
            await self._server.stop(_STOP_S)

    async def _check(self, _requests: Any, context: Context) -> health_pb2.HealthCheckResponse:
        if len(self._waiting) >= _WAITING and not (oldest := self._waiting.popleft()).expired():
            oldest.reschedule(0.0)
        try:
            async with asyncio.timeout(_REQUEST_S) as limit:
                self._waiting.append(limit)
                try:
                    raw = await context.read()
                finally:
                    if limit in self._waiting:
                        self._waiting.remove(limit)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request has not come")
        try:
            service = health_pb2.HealthCheckRequest.FromString(raw).service
        except (DecodeError, TypeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a HealthCheckRequest")
        if service != LIVENESS and service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        is_well = self._ready or service == LIVENESS
        return health_pb2.HealthCheckResponse(status=_SERVING if is_well else _NOT_SERVING)
