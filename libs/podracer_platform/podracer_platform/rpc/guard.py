"""The gate of every server: authorization (Authorizer), bounds of what a caller sends, and errors
as statuses.

A caller is authorized before a byte of its request is read. Requests are measured as raw bytes and
parsed afterwards; that of a unary method has to arrive within a few seconds.

This is the one place where exceptions become statuses. A PodracerError becomes its own status;
anything else is logged with its traceback under a short id, and the caller sees INTERNAL with that
id and nothing more. Handlers raise PodracerErrors and never call `context.abort`;
`current_caller()` returns the caller's identity.

A handler is a coroutine, an asynchronous generator, or a plain function or generator, which runs in
a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing
from typing import Any, Never, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from podracer_core.errors import DeadlineExpired, Exhausted, InvalidInput, PodracerError
from podracer_platform.rpc import limits
from podracer_platform.rpc.admission import Admission, Call
from podracer_platform.rpc.audit import audit_refusal, audited, note
from podracer_platform.rpc.auth import Authorizer, Identity, bearer_token, check_request, set_caller
from podracer_platform.rpc.health import CHECK
from podracer_platform.rpc.observation import observed_server_call
from podracer_platform.rpc.status import to_grpc_status

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Guard(grpc.aio.ServerInterceptor):
    """Authorizes each call, bounds and checks its requests, and maps its errors."""

    def __init__(
        self, authorizer: Authorizer, admission: Admission, request_bytes: Callable[[str], int]
    ) -> None:
        """`request_bytes`: the largest request of a method."""
        self._authorizer = authorizer
        self._admission = admission
        self._request_bytes = request_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or method == CHECK:
            return handler
        metadata = handler_call_details.invocation_metadata or ()
        caller: tuple[Identity, str] | Exception
        try:
            caller = self._authorizer.authorize(method, metadata), bearer_token(metadata)
        except Exception as refusal:  # noqa: BLE001 - mapped as what handlers raise
            caller = refusal
        respond, is_stream = _responding(handler), handler.response_streaming

        async def serve(identity: Identity, call: Call, context: Context) -> Any:
            set_caller(identity)
            requests = Requests(context, handler, self._request_bytes(method), identity, call)
            if handler.request_streaming:
                return note(await respond(requests, context))
            async with call.place():
                raw = await requests.only()
                if not is_stream:
                    async with call.turn():
                        return note(await respond(requests.parsed(raw), context))
            return await respond(requests.parsed(raw), context)

        # Each call runs in its own task and context, so set_caller affects this call only.
        async def guarded(_requests: Any, context: Context) -> Any:
            try:
                with observed_server_call(method, metadata, is_stream=is_stream):
                    if isinstance(caller, Exception):
                        audit_refusal(method, caller, context.peer())
                        raise caller
                    identity, token = caller
                    streams = is_stream or handler.request_streaming
                    admitted = self._admission.one_call(identity.role, token, is_stream=streams)
                    with admitted as call, audited(method, identity, context.peer()):
                        return await serve(identity, call, context)
            except Exception as error:  # noqa: BLE001 - the one place that maps what handlers raise
                await _abort(method, context, error)

        # To gRPC all requests are streams: it would read that of a unary method before our code
        # runs.
        make = (
            grpc.stream_stream_rpc_method_handler
            if is_stream
            else grpc.stream_unary_rpc_method_handler
        )
        return make(guarded, None, handler.response_serializer)


class Requests(AsyncIterator[Any]):
    """The requests of a call: measured, parsed, and limited to the caller's projects, one after the
    other."""

    def __init__(
        self, context: Context, handler: Handler, most_bytes: int, identity: Identity, call: Call
    ) -> None:
        self._context = context
        self._most_bytes = most_bytes
        self._identity = identity
        self._call = call
        self._parse = handler.request_deserializer

    async def only(self) -> bytes:
        """The one request of a unary method, not parsed yet. Raises as `__anext__`, and
        DeadlineExpired."""
        try:
            async with asyncio.timeout(limits.REQUEST_S):
                return await self._read()
        except TimeoutError:
            raise DeadlineExpired(
                f"the request has not arrived within {limits.REQUEST_S:g} s"
            ) from None
        except StopAsyncIteration:
            raise InvalidInput("the call has no request", reason="NO_REQUEST") from None

    def parsed(self, raw: bytes) -> Any:
        """A request. Raises InvalidInput for one that is no message, and as `check_request`."""
        try:
            request = self._parse(raw) if self._parse else raw
        except DecodeError as error:
            raise InvalidInput(
                "the request is not a message of this method", reason="INVALID_MESSAGE"
            ) from error
        check_request(self._identity, note(request))
        return request

    async def __anext__(self) -> Any:
        """Raises as `parsed`, and Exhausted for a request that is too large."""
        return self.parsed(await self._read())

    async def _read(self) -> bytes:
        raw: Any = await self._context.read()
        if raw is grpc.aio.EOF:
            raise StopAsyncIteration
        if len(raw) > self._most_bytes:
            problem = (
                f"the request has {len(raw)} bytes, larger than max {self._most_bytes} of "
                "this method"
            )
            raise Exhausted(problem, reason="REQUEST_TOO_LARGE")
        self._call.hold(len(raw))
        return bytes(raw)


class _ThreadContext:
    """As much of a `grpc.ServicerContext` as handlers in threads need."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def is_active(self) -> bool:
        """Whether the caller still waits."""
        return not self._ended.is_set()

    def end(self) -> None:
        self._ended.set()


def _responding(handler: Handler) -> Callable[[Any, Context], Awaitable[Any]]:
    """The handler's behaviour as a coroutine, which writes the responses of a stream."""
    behaviour: Any = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    assert behaviour is not None, "a gRPC handler has one of the four"
    if inspect.iscoroutinefunction(behaviour):
        coroutine: Callable[[Any, Context], Awaitable[Any]] = behaviour
        return coroutine

    async def generated(request: Any, context: Context) -> None:
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    async def in_thread(request: Any, context: Context) -> Any:
        loop, thread_context = asyncio.get_running_loop(), _ThreadContext()

        def wait_for(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        def requests() -> Iterator[Any]:
            while (one := wait_for(anext(request, _END))) is not _END:
                yield one

        def work() -> Any:
            responses = behaviour(
                requests() if handler.request_streaming else request, thread_context
            )
            if not handler.response_streaming:
                return responses
            try:
                for response in responses:
                    wait_for(context.write(response))
            finally:
                if isinstance(responses, Generator):
                    responses.close()

        try:
            return await loop.run_in_executor(None, contextvars.copy_context().run, work)
        finally:
            thread_context.end()

    return generated if inspect.isasyncgenfunction(behaviour) else in_thread


_END = object()


async def _abort(method: str, context: Context, error: Exception) -> Never:
    if isinstance(error, grpc.aio.BaseError) or context.done():
        raise error
    await context.abort_with_status(to_grpc_status(_as_podracer_error(method, error)))


def _as_podracer_error(method: str, error: Exception) -> PodracerError:
    if isinstance(error, PodracerError):
        return error
    error_id = secrets.token_hex(4)
    logger.error("unexpected error %s in %s", error_id, method, exc_info=error)
    return PodracerError(
        f"internal error {error_id}; the server's log has the details", error_id=error_id
    )
