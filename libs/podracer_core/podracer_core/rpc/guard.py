"""The server interceptors: authorization (Authorizer), and the mapping of errors to statuses.

This is the one place where exceptions become statuses. A PodracerError becomes its own status; anything else is
logged with its traceback under a short id, and the caller sees INTERNAL with that id and nothing more. Handlers
raise PodracerErrors and never call `context.abort`; `current_caller()` returns the caller's identity.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import random
import secrets
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any, Never, TypeAlias

import grpc

from podracer_core.errors import Exhausted, PodracerError
from podracer_core.rpc import limits
from podracer_core.rpc.audit import audit_refusal, audited, note
from podracer_core.rpc.auth import HEALTH_PREFIX, Authorizer, Identity, check_request, set_caller
from podracer_core.rpc.observation import observed_server_call
from podracer_core.rpc.status import to_grpc_status

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behaviour: TypeAlias = Callable[[Any, Any], Any]
AioContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_END = object()


class Guard(grpc.ServerInterceptor):
    """The guard of a `grpc.server`: authorizes each call and maps its errors, for unary and streaming methods."""

    def __init__(self, authorizer: Authorizer, calls: CallLimit) -> None:
        self._authorizer = authorizer
        self._calls = calls

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler, method = continuation(handler_call_details), handler_call_details.method
        if handler is None or method.startswith(HEALTH_PREFIX):
            return handler
        behaviour = _behaviour_of(handler)

        def guarded_unary(request: Any, context: grpc.ServicerContext) -> Any:
            with _mapped_errors(method, context), _observed(method, context), self._calls.one_call():
                scope, request = self._scope(method, context, request)
                return scope.run(behaviour, request, context)

        def guarded_stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _mapped_errors(method, context), _observed(method, context, True), self._calls.one_call():
                # The generator runs in its own context, so that its caller never leaks to another call on this thread.
                scope, request = self._scope(method, context, request)
                responses = scope.run(behaviour, request, context)
                try:
                    while (response := scope.run(next, responses, _END)) is not _END:
                        yield response
                finally:
                    if isinstance(responses, Generator):
                        scope.run(responses.close)

        return _with_behaviour(handler, guarded_stream if handler.response_streaming else guarded_unary)

    def _scope(self, method: str, context: grpc.ServicerContext, request: Any) -> tuple[contextvars.Context, Any]:
        """A context with the caller's identity, and the request or requests, limited to the caller's projects."""
        identity = self._authorizer.authorize(method, context.invocation_metadata())
        scope = contextvars.copy_context()
        scope.run(set_caller, identity)
        return scope, _checked(identity, request)


class AioGuard(grpc.aio.ServerInterceptor):
    """The guard of a `grpc.aio.server`; handlers are coroutines or asynchronous generators."""

    def __init__(self, authorizer: Authorizer, calls: CallLimit) -> None:
        self._authorizer = authorizer
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or method.startswith(HEALTH_PREFIX):
            return handler
        behaviour = _behaviour_of(handler)
        try:  # before a byte of the request is read
            identity = self._authorizer.authorize(method, handler_call_details.invocation_metadata or ())
        except Exception as refusal:  # noqa: BLE001 - mapped as what handlers raise
            return _refusing(method, refusal)

        def admit(request: Any) -> Any:
            """Set the caller's identity; returns the request or requests, limited to the caller's projects."""
            set_caller(identity)
            return _checked(identity, request)

        # Each call runs in its own task and context, so set_caller affects this call only.
        async def guarded_coroutine(request: Any, context: AioContext) -> Any:
            try:
                with _observed(method, context), self._calls.one_call(), audited(method, identity, context.peer()):
                    return note(await behaviour(admit(note(request)), context))
            except Exception as error:  # noqa: BLE001 - the one place that maps what handlers raise
                await _abort(method, context, error)

        async def guarded_generator(request: Any, context: AioContext) -> AsyncIterator[Any]:
            try:
                with _observed(method, context, True), self._calls.one_call():
                    async with aclosing(behaviour(admit(request), context)) as responses:
                        async for response in responses:
                            yield response
            except Exception as error:  # noqa: BLE001 - the one place that maps what handlers raise
                await _abort(method, context, error)

        return _with_behaviour(
            handler, guarded_generator if inspect.isasyncgenfunction(behaviour) else guarded_coroutine
        )


def _refusing(method: str, refusal: Exception) -> Handler:
    """A handler that answers with the refusal and never reads a request, so that a refused caller costs no memory."""

    async def refuse(_requests: Any, context: AioContext) -> None:
        with _observed(method, context, True):
            audit_refusal(method, refusal, context.peer())
            await _abort(method, context, refusal)

    return grpc.stream_stream_rpc_method_handler(refuse, None, None)


def _checked(identity: Identity, request: Any) -> Any:
    """The request or stream of requests, each checked on arrival (check_request)."""
    if isinstance(request, AsyncIterable):
        return _each_checked_later(identity, request)
    if isinstance(request, Iterator):
        return _each_checked(identity, request)
    check_request(identity, request)
    return request


def _each_checked(identity: Identity, requests: Iterator[Any]) -> Iterator[Any]:
    for request in requests:
        check_request(identity, request)
        yield request


async def _each_checked_later(identity: Identity, requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        check_request(identity, note(request))
        yield request


def _behaviour_of(handler: Handler) -> Behaviour:
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert behaviour is not None, "a gRPC handler has one of the four"
    return behaviour


def _with_behaviour(handler: Handler, behaviour: Behaviour) -> Handler:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _observed(
    method: str, context: grpc.ServicerContext | AioContext, is_stream: bool = False
) -> AbstractContextManager[None]:
    return observed_server_call(method, context.invocation_metadata, is_stream=is_stream)


@contextmanager
def _mapped_errors(method: str, context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the one place that maps what handlers raise
        if not context.is_active() and isinstance(error, grpc.RpcError | PodracerError):
            # Reading the requests of a disconnected caller raises a bare RpcError; there is no peer to answer.
            logger.debug("%s ended after its caller had disconnected: %r", method, error)
            context.abort(grpc.StatusCode.CANCELLED, "the caller has disconnected")
        context.abort_with_status(to_grpc_status(_as_podracer_error(method, error)))


async def _abort(method: str, context: AioContext, error: Exception) -> Never:
    if isinstance(error, grpc.aio.AbortError) or context.done():
        raise error
    await context.abort_with_status(to_grpc_status(_as_podracer_error(method, error)))


def _as_podracer_error(method: str, error: Exception) -> PodracerError:
    if isinstance(error, PodracerError):
        return error
    error_id = secrets.token_hex(4)
    logger.error("unexpected error %s in %s", error_id, method, exc_info=error)
    return PodracerError(f"internal error {error_id}; the server's log has the details", error_id=error_id)


class CallLimit:
    """Limits the concurrent calls of a server; a stream counts while it is open."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._in_progress = 0
        self._lock = threading.Lock()

    @contextmanager
    def one_call(self) -> Iterator[None]:
        """Count a call. Raises Exhausted at the limit, with the seconds after which to retry, random by caller."""
        with self._lock:
            if self._in_progress >= self._calls:
                raise Exhausted(
                    f"the server is at its limit of {self._calls} concurrent calls",
                    reason="OVERLOADED",
                    retry_after_s=round(random.uniform(*limits.OVERLOADED_RETRY_S), 3),  # noqa: S311 - no secret
                )
            self._in_progress += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_progress -= 1
