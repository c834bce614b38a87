"""Servers, and the health of each without a token (`grpc.health.v1`).

AioRpcServer serves in the event loop of its process: orchestrator, leaderboard, policy server. In
worker, learner and evaluator the main thread computes, so RpcServer has a thread of its own;
handlers that block run in further threads (guard.py).

The health is on the server itself, and on a port for health alone (PODRACER_HEALTH_LISTEN). This
port is plain text without a token, as the probes of a kubelet or container engine have neither
token nor certificate. It may listen beyond this machine, as it returns only a status.

    ""          readiness: the server serves, and its dependencies answer; not while it drains
    liveness    the process answers, also while it drains

Of health only `Check` is served, from the event loop that it reports on. Its request has to arrive
at once, so that callers who keep theirs back hold nothing and delay no probe."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from podracer_core.errors import PodracerError
from podracer_platform.rpc import limits
from podracer_platform.rpc.address import bind, prepare_address
from podracer_platform.rpc.auth import Authorizer, access_of
from podracer_platform.rpc.guard import Admission, Context, Guard
from podracer_platform.rpc.tls import TlsFolder

logger = logging.getLogger(__name__)

RequestBytes: TypeAlias = Mapping[str, int | Callable[[], int]]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """
    request_bytes       the largest requests that are not those that the protos state; a function
                        tells one anew for each call
    concurrent_calls    None: the default of the kind of server
    places, large_bytes see guard.py
    connection_streams  the most calls of a connection; gRPC resets further ones
    connection_age_s    after so many seconds a connection takes no new calls, and so many later it
                        is closed
    allow_insecure      listen beyond this machine without `tls`; unix sockets have no TLS: only
                        this user can open them
    health              address of a second port for health alone; "": none
    """

    request_bytes: RequestBytes = field(default_factory=dict)
    concurrent_calls: int | None = None
    places: int = limits.PLACES
    large_bytes: int = limits.LARGE_BYTES
    connection_streams: int = limits.CONNECTION_STREAMS
    connection_age_s: tuple[float, float] | None = None
    allow_insecure: bool = False
    tls: TlsFolder | None = None
    reflection: bool = True
    health: str = ""

    def most_bytes(self, method: str) -> int:
        """The largest request of a method."""
        found = (
            self.request_bytes.get(method) or access_of(method).max_bytes or limits.REQUEST_BYTES
        )
        return found if isinstance(found, int) else found()

    def grpc_options(self, methods: Iterable[str]) -> list[tuple[str, Any]]:
        """gRPC's own limit is one for all `methods` of the server."""
        stated = (access_of(method).max_bytes for method in methods)
        fixed = (size for size in self.request_bytes.values() if isinstance(size, int))
        age: list[tuple[str, Any]] = []
        if self.connection_age_s is not None:
            age_ms, grace_ms = (int(seconds * 1000) for seconds in self.connection_age_s)
            age = [
                ("grpc.max_connection_age_ms", age_ms),
                ("grpc.max_connection_age_grace_ms", grace_ms),
            ]
        return [
            *age,
            ("grpc.server.max_pending_requests", limits.PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", limits.PENDING_CALLS),
            ("grpc.so_reuseport", 0),  # else a second server would share the port in silence
            ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
            ("grpc.max_receive_message_length", max((limits.REQUEST_BYTES, *stated, *fixed))),
            # a compressed request would grow before it is measured
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.server_handshake_timeout_ms", int(limits.HANDSHAKE_S * 1000)),
            ("grpc.max_concurrent_streams", self.connection_streams),
            ("grpc.keepalive_time_ms", int(limits.SERVER_KEEPALIVE_S * 1000)),
            ("grpc.keepalive_timeout_ms", int(limits.KEEPALIVE_TIMEOUT_S * 1000)),
            (
                "grpc.http2.min_recv_ping_interval_without_data_ms",
                int(limits.MINIMUM_PING_INTERVAL_S * 1000),
            ),
        ]


LIVENESS = "liveness"
SERVICE = "grpc.health.v1.Health"

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


class Health:
    """The health of a server. Not ready before `set_ready(True)`. The port answers only while the
    event loop runs."""

    def __init__(self, services: Sequence[str] = (), address: str = "") -> None:
        """`services`: names that are ready when the server is; `address`: of the port for health
        alone, "": none.

        Raises InvalidInput if it cannot listen there.
        """
        self._names = ("", *services)
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


Registration = Callable[[grpc.aio.Server], None]
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
    services: Sequence[Registration],
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
            await self.check()
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    async def check(self) -> None:
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


Result = TypeVar("Result")

_CLEAR_UP_S = 0.5
"""How long handlers may run after their calls; one that hangs is abandoned."""


class RpcServer:
    """An AioRpcServer in a thread: `address` is what to call. It accepts calls from `start` until
    `drain`."""

    def __init__(self, loop: _LoopThread, server: AioRpcServer) -> None:
        self.address, self.health_address = server.address, server.health_address
        self._loop, self._server = loop, server
        self._on_drain: list[Callable[[], None]] = []

    def start(self) -> None:
        self._loop.do(self._server.start())

    def set_ready(self, ready: bool) -> None:
        """Set the health status."""
        self._loop.do(self._server.set_ready(ready))

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` when draining begins: a service then tells its open streams and ends
        them."""
        self._on_drain.append(callback)

    def drain(self, grace_s: float = limits.DRAIN_GRACE_S) -> None:
        """Health says NOT_SERVING, new calls are refused, running ones have `grace_s` to end;
        returns when all have.

        Draining twice is harmless.
        """
        if self._loop.is_closed:
            return
        self._loop.do(self._server.be_unready())
        for callback in self._on_drain:
            callback()
        self._loop.do(self._server.drain(grace_s))
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.drain(0.0 if exc_type is not None else limits.DRAIN_GRACE_S)


def create_server(
    address: str,
    services: Sequence[Registration],
    authorizer: Authorizer,
    options: ServerOptions | None = None,
) -> RpcServer:
    """See `create_aio_server`."""
    options = options or ServerOptions()
    calls = options.concurrent_calls or limits.SERVER_THREADS
    loop = _LoopThread(calls + limits.SPARE_CALLS)
    try:
        options = replace(options, concurrent_calls=calls)
        return RpcServer(loop, loop.do(create_aio_server(address, services, authorizer, options)))
    except BaseException:
        loop.close()
        raise


class _LoopThread:
    """An event loop in a thread, and `threads` for what blocks."""

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._threads = futures.ThreadPoolExecutor(threads, thread_name_prefix="rpc")
        self._loop.set_default_executor(self._threads)
        self._thread = threading.Thread(target=self._loop.run_forever, name="rpc-loop", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        # Calls have ended, their handlers may still be clearing up; the process ends without asking
        # them.
        clearing_up = threading.Thread(target=self._threads.shutdown, name="rpc-end", daemon=True)
        clearing_up.start()
        clearing_up.join(_CLEAR_UP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
