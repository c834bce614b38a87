"""Servers of processes whose main thread computes: worker, learner, evaluator.

The server and its event loop have a thread of their own; handlers that block run in further threads
(guard.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent import futures
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from podracer_platform.rpc import limits
from podracer_platform.rpc.aio_server import AioRegistration, AioRpcServer, create_aio_server
from podracer_platform.rpc.auth import Authorizer
from podracer_platform.rpc.binding import ServerOptions

Registration = AioRegistration
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
