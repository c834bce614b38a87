"""Servers (`grpc.aio.server`). Those of the pods run in a thread (server.py)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import grpc
from grpc_reflection.v1alpha import reflection

from podracer_core.errors import PodracerError
from podracer_platform.rpc import limits
from podracer_platform.rpc.admission import Admission
from podracer_platform.rpc.auth import Authorizer
from podracer_platform.rpc.binding import ServerOptions, bind, prepare_address
from podracer_platform.rpc.guard import Guard
from podracer_platform.rpc.health import SERVICE, Health

logger = logging.getLogger(__name__)

AioRegistration = Callable[[grpc.aio.Server], None]
"""Adds a service: `functools.partial(add_JobServiceServicer_to_server, servicer)`."""


class AioRpcServer:
    """A bound asyncio server; `address` is what to call, `health_address` the port for health alone
    where there is one.

    It accepts calls from `start` until `drain`.
    """

    def __init__(self, server: grpc.aio.Server, address: str, health: Health) -> None:
        self.address = address
        self._server = server
        self._health = health
        self._on_drain: list[Callable[[], Awaitable[None]]] = []

    @property
    def health_address(self) -> str:
        return self._health.address

    async def start(self) -> None:
        await self._server.start()
        self._health.set_ready(True)

    async def set_ready(self, ready: bool) -> None:
        """Set the health status. A draining server stays not ready."""
        self._health.set_ready(ready)

    def on_drain(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await `callback()` when draining begins: a service then tells its open streams and ends
        them."""
        self._on_drain.append(callback)

    async def be_unready(self) -> None:
        """Health says NOT_SERVING from now on."""
        self._health.drain()

    async def drain(self, grace_s: float = limits.DRAIN_GRACE_S) -> None:
        """Health says NOT_SERVING, new calls are refused, running ones have `grace_s` to end;
        returns when all have."""
        await self.be_unready()
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
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.drain(0.0 if exc_type is not None else limits.DRAIN_GRACE_S)


async def create_aio_server(
    address: str,
    services: Sequence[AioRegistration],
    authorizer: Authorizer,
    options: ServerOptions | None = None,
) -> AioRpcServer:
    """Bind a server with health, reflection, authorization and error mapping; port 0 takes a free
    one.

    Raises InvalidInput when it may not or cannot listen at `address`.
    """
    options = options or ServerOptions()
    parsed = prepare_address(
        address, allow_insecure=options.allow_insecure, has_tls=options.tls is not None
    )
    calls = options.concurrent_calls or limits.AIO_CONCURRENT_CALLS
    server = grpc.aio.server(
        interceptors=[
            Guard(
                authorizer,
                Admission(calls, options.places, options.large_bytes),
                options.most_bytes,
            )
        ],
        options=options.grpc_options(authorizer.methods),
    )
    for register in services:
        register(server)
    if options.reflection:
        names = (*authorizer.service_names, SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    bound = bind(server, parsed, options.tls)
    own_health = Health(authorizer.service_names, options.health)
    own_health.register(server)
    await own_health.open()
    return AioRpcServer(server, bound, own_health)


EVERY_S = 5.0
ANSWER_S = 5.0
"""How long a check may take. A longer one counts as failed, and is not started a second time."""

Check = Callable[[], Awaitable[object]]


class Readiness:
    """Sets a server's health to NOT_SERVING while one of `checks` raises or hangs.

    checks   by the name of their subject: `the database`
    """

    def __init__(self, server: AioRpcServer, checks: Mapping[str, Check]) -> None:
        self._server = server
        self._checks = checks
        self._slow: dict[str, asyncio.Future[object]] = {}
        self._problem = ""

    async def run(self) -> None:
        """Run the checks forever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    async def look(self) -> None:
        """Run the checks once."""
        found = await asyncio.gather(
            *(self._problem_of(what, check) for what, check in self._checks.items())
        )
        problem = "; ".join(filter(None, found))
        if problem != self._problem:
            self._problem = problem
            logger.log(
                logging.WARNING if problem else logging.INFO,
                "%s",
                f"not ready: {problem}" if problem else "ready",
            )
        await self._server.set_ready(not problem)

    async def _problem_of(self, what: str, check: Check) -> str:
        task = self._slow.pop(what, None) or asyncio.ensure_future(check())
        await asyncio.wait([task], timeout=ANSWER_S)
        if not task.done():
            self._slow[what] = task
            return f"{what} has not answered within {ANSWER_S:g} s"
        try:
            task.result()
        except PodracerError as error:
            return f"{what}: {error.message}"
        except Exception as error:
            logger.exception("a mistake in the check of %s", what)
            return f"{what}: {error!r}"
        return ""
