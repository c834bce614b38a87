"""Asyncio servers (`grpc.aio.server`): orchestrator, leaderboard."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from podracer_core.rpc import limits
from podracer_core.rpc.auth import Authorizer
from podracer_core.rpc.binding import ServerOptions, bind, prepare_address
from podracer_core.rpc.guard import AioGuard
from podracer_core.rpc.health import AioHealth
from podracer_core.rpc.overload import CallLimit

logger = logging.getLogger(__name__)

AioRegistration = Callable[[grpc.aio.Server], None]
"""Adds a service: `functools.partial(add_JobServiceServicer_to_server, servicer)`."""


class AioRpcServer:
    """A bound asyncio server; `address` is what to call, `health_address` the port for health alone where there is one.

    It accepts calls from `start` until `drain`.
    """

    def __init__(self, server: grpc.aio.Server, address: str, health: AioHealth) -> None:
        self.address = address
        self._server = server
        self._health = health
        self._on_drain: list[Callable[[], Awaitable[None]]] = []

    @property
    def health_address(self) -> str:
        return self._health.address

    async def start(self) -> None:
        await self._server.start()
        await self._health.set_ready(True)

    async def set_ready(self, ready: bool) -> None:
        """Have health say whether it can work; nothing makes ready again who drains."""
        await self._health.set_ready(ready)

    def on_drain(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await `callback()` when draining begins: a service then tells its open streams and ends them."""
        self._on_drain.append(callback)

    async def drain(self, grace_s: float = limits.DRAIN_GRACE_S) -> None:
        """Health says NOT_SERVING, new calls are refused, running ones have `grace_s` to end; returns when all have."""
        await self._health.drain()
        for callback in self._on_drain:
            try:
                await callback()
            except Exception:
                logger.exception("draining goes on without one of its steps")
        await self._server.stop(grace_s)
        await self._health.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain(0.0 if exc_type is not None else limits.DRAIN_GRACE_S)


async def create_aio_server(
    address: str,
    services: Sequence[AioRegistration],
    authorizer: Authorizer,
    options: ServerOptions | None = None,
) -> AioRpcServer:
    """Bind a server with health, reflection, authorization and error mapping; port 0 takes a free one.

    Raises InvalidInput when it may not or cannot listen at `address`.
    """
    options = options or ServerOptions()
    parsed = prepare_address(address, allow_insecure=options.allow_insecure, has_tls=options.tls is not None)
    calls = options.concurrent_calls or limits.AIO_CONCURRENT_CALLS
    server = grpc.aio.server(
        interceptors=[AioGuard(authorizer, CallLimit(calls))],
        options=options.grpc_options(),
        maximum_concurrent_rpcs=calls + limits.SPARE_CALLS,
    )
    for register in services:
        register(server)
    if options.reflection:
        names = (*authorizer.service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    bound = bind(server, parsed, options.tls)
    own_health = AioHealth(authorizer.service_names, options.health)
    health_pb2_grpc.add_HealthServicer_to_server(own_health.servicer, server)
    await own_health.open()
    return AioRpcServer(server, bound, own_health)
