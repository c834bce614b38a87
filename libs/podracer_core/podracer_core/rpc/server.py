"""Servers of threads (`grpc.server`): worker, learner, evaluator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from podracer_core.rpc import limits
from podracer_core.rpc.auth import Authorizer
from podracer_core.rpc.binding import ServerOptions, bind, prepare_address
from podracer_core.rpc.guard import CallLimit, Guard
from podracer_core.rpc.health import Health

Registration = Callable[[grpc.Server], None]
"""Adds a service: `functools.partial(add_WorkerServiceServicer_to_server, servicer)`."""

_CLEAR_UP_S = 0.5
"""How long handlers may run after their calls; one that hangs is abandoned."""


class RpcServer:
    """A bound server; `address` is what to call, `health_address` the port for health alone where there is one.

    It accepts calls from `start` until `drain`.
    """

    def __init__(self, server: grpc.Server, threads: futures.Executor, address: str, health: Health) -> None:
        self.address = address
        self._server = server
        self._threads = threads
        self._health = health
        self._on_drain: list[Callable[[], None]] = []

    @property
    def health_address(self) -> str:
        return self._health.address

    def start(self) -> None:
        self._server.start()
        self._health.set_ready(True)

    def set_ready(self, ready: bool) -> None:
        """Set the health status."""
        self._health.set_ready(ready)

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` when draining begins: a service then tells its open streams and ends them."""
        self._on_drain.append(callback)

    def drain(self, grace_s: float = limits.DRAIN_GRACE_S) -> None:
        """Health says NOT_SERVING, new calls are refused, running ones have `grace_s` to end; returns when all have."""
        self._health.set_ready(False)
        for callback in self._on_drain:
            callback()
        self._server.stop(grace_s).wait()
        # Calls have ended, their handlers may still be clearing up; the process ends without asking them.
        clearing_up = threading.Thread(target=self._threads.shutdown, name="rpc-end", daemon=True)
        clearing_up.start()
        clearing_up.join(_CLEAR_UP_S)
        self._health.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.drain(0.0 if exc_type is not None else limits.DRAIN_GRACE_S)


def create_server(
    address: str,
    services: Sequence[Registration],
    authorizer: Authorizer,
    options: ServerOptions | None = None,
) -> RpcServer:
    """Bind a server with health, reflection, authorization and error mapping; port 0 takes a free one.

    Raises InvalidInput when it may not or cannot listen at `address`.
    """
    options = options or ServerOptions()
    parsed = prepare_address(address, allow_insecure=options.allow_insecure, has_tls=options.tls is not None)
    calls = options.concurrent_calls or limits.SERVER_THREADS
    count = calls + limits.SPARE_CALLS
    threads = futures.ThreadPoolExecutor(max_workers=count, thread_name_prefix="rpc")
    server = grpc.server(
        threads,
        interceptors=[Guard(authorizer, CallLimit(calls))],
        options=options.grpc_options(),
        maximum_concurrent_rpcs=count,
    )
    for register in services:
        register(server)
    if options.reflection:
        names = (*authorizer.service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    bound = bind(server, parsed, options.tls)
    own_health = Health(authorizer.service_names, options.health)
    health_pb2_grpc.add_HealthServicer_to_server(own_health.servicer, server)
    return RpcServer(server, threads, bound, own_health)
