"""The gate of every server: authorization (Authorizer), admission, bounds of what a caller sends,
errors as statuses, the audit log, and metrics and spans of calls.

A caller is authorized before a byte of its request is read. Requests are measured as raw bytes and
parsed afterwards; that of a unary method has to arrive within a few seconds.

This is the one place where exceptions become statuses. A PodracerError becomes its own status;
anything else is logged with its traceback under a short id, and the caller sees INTERNAL with that
id and nothing more. Handlers raise PodracerErrors and never call `context.abort`;
`current_caller()` returns the caller's identity.

A handler is a coroutine, an asynchronous generator, or a plain function or generator, which runs in
a thread.

How a server is shared by its callers (Admission), so that none keeps the others waiting:

    holders of leases   limited for each lease alone: renewals, commits and completions always find
                        room
    pods, control       limited by the server's calls
    clients             all together three quarters of the server's calls, each token a quarter,
                        half of it streams. A token has a few places for unary calls; its further
                        ones wait. Large requests, which take long in the event loop, take turns:
                        one of a token, and one of the server at a time

A call counts from before its request is read until it ends. The audit log has a JSON line for each
act of a client or an operator, done or refused, without what was sent."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import logging
import random
import secrets
import sys
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
)
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Never, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PermissionRefused,
    PodracerError,
)
from podracer_platform.rpc import limits
from podracer_platform.rpc.auth import (
    CHECK,
    Authorizer,
    Identity,
    access_of,
    bearer_token,
    check_bounds,
    check_projects,
    set_caller,
    short_name,
)
from podracer_platform.rpc.status import code_of, to_grpc_status
from podracer_platform.rpc.tokens import Role
from podracer_platform.telemetry import NO_SPAN, TRACEPARENT, Span, are_recorded, metrics, span

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
                return note_act(await respond(requests, context))
            async with call.place():
                raw = await requests.only()
                if not is_stream:
                    async with call.turn():
                        return note_act(await respond(requests.parsed(raw), context))
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
        """A request. Raises InvalidInput for one that is no message, and as `check_bounds`
        and `check_projects`."""
        try:
            request = self._parse(raw) if self._parse else raw
        except DecodeError as error:
            raise InvalidInput(
                "the request is not a message of this method", reason="INVALID_MESSAGE"
            ) from error
        check_bounds(note_act(request))
        check_projects(self._identity, request)
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


BEGIN_TRACES = frozenset({"/podracer.orchestrator.v1.JobService/CreateJob"})
"""Calls that begin a trace if the client has none: all work for a job belongs to the trace of its
creation."""

Metadata = Iterable[tuple[str, str | bytes]]


@contextmanager
def observed_server_call(method: str, metadata: Metadata, *, is_stream: bool) -> Iterator[None]:
    """Observe a call's handler; used inside the mapping of errors."""
    if not (metrics.are_wanted() or are_recorded()):
        yield
        return
    began_at, code = time.perf_counter(), grpc.StatusCode.OK
    try:
        with NO_SPAN if is_stream else _server_span(method, metadata) as own:
            try:
                yield
            except PodracerError as error:
                code = code_of(error)
                raise
            except Exception:
                code = grpc.StatusCode.INTERNAL
                raise
            except BaseException:
                # the task was cancelled, or the generator closed: the caller has gone
                code = grpc.StatusCode.CANCELLED
                raise
            finally:
                own.set(code=code.name)
    finally:
        metrics.RPC_SERVER.record(
            time.perf_counter() - began_at, method=short_name(method), code=code.name
        )


def _server_span(method: str, metadata: Metadata) -> Span:
    parent = next(
        (value for key, value in metadata if key == TRACEPARENT and isinstance(value, str)), ""
    )
    return span(short_name(method), parent, kind="server", begins=method in BEGIN_TRACES)


_OWN = frozenset({Role.POD, Role.CONTROL, Role.LEASE})
"""The roles of the installation's own processes; all others are clients."""


class Call:
    """A call in progress, of a caller with `role`."""

    def __init__(
        self, role: Role, caller: _Caller, large: asyncio.Semaphore, large_bytes: int
    ) -> None:
        self._is_client, self._caller = role not in _OWN, caller
        self._large, self._large_bytes = large, large_bytes
        self._bytes = 0

    def place(self) -> AbstractAsyncContextManager[None]:
        """One of the caller's places: wait for it before the request is read."""
        return self._caller.places if self._is_client else nullcontext()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for it before a request that has been read is parsed."""
        if not self._is_client or self._bytes < self._large_bytes:
            yield
            return
        async with self._caller.large, self._large:
            yield

    def hold(self, size_bytes: int) -> None:
        """The call's latest request has this size. Raises Exhausted if the caller has too many
        bytes in flight."""
        self._caller.size_bytes += size_bytes - self._bytes
        self._bytes = size_bytes
        if self._is_client and self._caller.size_bytes > limits.TOKEN_BYTES:
            raise _overloaded(f"this token has more than {limits.TOKEN_BYTES} bytes in flight")

    def end(self) -> None:
        """The call is over."""
        self._caller.size_bytes -= self._bytes


class Admission:
    """Counts calls, streams and bytes, of the server and of each token."""

    def __init__(
        self, calls: int, places: int = limits.PLACES, large_bytes: int = limits.LARGE_BYTES
    ) -> None:
        """`places`: of a token; `large_bytes`: from this size on a request is large."""
        self._calls, self._places = calls, places
        self._large, self._large_bytes = asyncio.Semaphore(1), large_bytes
        self._all = _Count(calls, "the server")
        self._clients = _Count(max(calls * 3 // 4, 1), "the server")
        self._callers: dict[Hashable, _Caller] = {}

    @contextmanager
    def one_call(self, role: Role, token: Hashable, *, is_stream: bool) -> Iterator[Call]:
        """Count a call. Raises Exhausted at a limit, with the seconds after which to retry, random
        by caller."""
        caller = self._callers.get(token) or _Caller(self._calls, self._places)
        counts = [self._all]
        if role is Role.LEASE:
            counts = [caller.lease]
        elif role not in _OWN:
            counts += [self._clients, caller.calls, *([caller.streams] if is_stream else [])]
        for count in counts:
            count.require_room()
        for count in (caller.open, *counts):
            count.now += 1
        self._callers[token] = caller
        call = Call(role, caller, self._large, self._large_bytes)
        try:
            yield call
        finally:
            call.end()
            for count in (caller.open, *counts):
                count.now -= 1
            if not caller.open.now:
                del self._callers[token]


class _Count:
    def __init__(self, most: int, whose: str, what: str = "calls") -> None:
        self.now = 0
        self._most = most
        self._what = f"{whose} is at its limit of {most} concurrent {what}"

    def require_room(self) -> None:
        if self.now >= self._most:
            raise _overloaded(self._what)


class _Caller:
    """What a token has in flight."""

    def __init__(self, calls: int, places: int) -> None:
        most = max(calls // 4, 1)
        self.open = _Count(calls, "this token")
        self.lease = _Count(limits.LEASE_CALLS, "this lease")
        self.calls = _Count(most, "this token")
        self.streams = _Count(max(most // 2, 1), "this token", "streams")
        self.places, self.large = asyncio.Semaphore(places), asyncio.Semaphore(1)
        self.size_bytes = 0


def _overloaded(problem: str) -> Exhausted:
    wait_s = round(random.uniform(*limits.OVERLOADED_RETRY_S), 3)  # noqa: S311 - no secret
    return Exhausted(problem, reason="OVERLOADED", retry_after_s=wait_s)


audit_log = logging.getLogger("podracer.audit")


Seen = TypeVar("Seen")


_seen: ContextVar[list[Message] | None] = ContextVar("podracer_seen", default=None)


def write_audit_log(path: Path | None) -> None:
    """Append the lines to a file, or write them to stderr. Raises InvalidInput if the file cannot
    be written."""
    try:
        handler = (
            logging.StreamHandler(sys.stderr)
            if path is None
            else WatchedFileHandler(path, encoding="utf-8")
        )
    except OSError as error:
        raise InvalidInput(
            f"PODRACER_AUDIT_LOG: cannot write {path}: {error.strerror}", path=path
        ) from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit_log.handlers[:], audit_log.propagate = [handler], False
    audit_log.setLevel(logging.INFO)


@contextmanager
def audited(method: str, identity: Identity, peer: str) -> Iterator[None]:
    """A block that leaves a line at its end if `method` is an act. `note` tells what it is
    about."""
    if not access_of(method).act:
        yield
        return
    seen: list[Message] = []
    _seen.set(seen)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        _write_act(method, identity, peer, error, seen)


def note_act(message: Seen) -> Seen:
    """Note a request or an answer of the call, and return it. Only the first one and the last one
    count."""
    if (seen := _seen.get()) is not None and isinstance(message, Message):
        seen[1 if seen else 0 :] = [message]
    return message


def audit_refusal(method: str, refusal: Exception, peer: str) -> None:
    """Leave a line of an act that the caller's role may not do."""
    if access_of(method).act and isinstance(refusal, PermissionRefused):
        role, token, name = (refusal.metadata[key] for key in ("role", "token", "name"))
        _write_act(method, Identity(Role(role), token=token, name=name), peer, refusal, [])


def _write_act(
    method: str, caller: Identity, peer: str, error: BaseException | None, seen: list[Message]
) -> None:
    outcome = "OK" if error is None else "INTERNAL" if isinstance(error, Exception) else "CANCELLED"
    if isinstance(error, PodracerError):
        outcome = code_of(error).name
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "logger": audit_log.name,
        **{"role": caller.role, "token": caller.token, "name": caller.name, "peer": peer},
        **{"method": method.removeprefix("/podracer."), "resource": _resource(seen)},
        **{"outcome": outcome, "reason": getattr(error, "reason", "")},
    }
    audit_log.info(json.dumps(entry))


def _resource(seen: list[Message]) -> str:
    """The name of what a call is about, in its request or, if it makes something, in its answer;
    else the parent."""
    made = [
        value for each in seen[1:] for _, value in each.ListFields() if isinstance(value, Message)
    ]
    messages = [*(getattr(each, "header", each) for each in seen[:1]), *made]
    found = (
        getattr(each, field, "")
        for field in ("name", "job", "leaderboard", "parent")
        for each in messages
    )
    return next((name[:200] for name in found if name and isinstance(name, str)), "")
