"""Channels to other Podracer processes.

Calls made through them carry the token, have a deadline when they are unary, are repeated when the
server is UNAVAILABLE or overloaded and the method is idempotent, and raise PodracerErrors. A
CallPolicy says this for one channel; interceptors apply it, those of synchronous channels and those
of asyncio.

Unary calls are measured. Within a span such a call is a span itself, and sends its `traceparent`;
the server's span of the call (guard.py) is its child. Streams live long, so they have no spans; the
work on them has."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import limits
from podracer_platform.rpc.address import Address, parse_address
from podracer_platform.rpc.auth import AUTHORIZATION, bearer, short_name
from podracer_platform.rpc.status import from_rpc_error
from podracer_platform.rpc.tls import TlsFolder, TlsMaterial, role_name
from podracer_platform.rpc.tokens import TokenSource
from podracer_platform.telemetry import NO_SPAN, TRACEPARENT, current, metrics, span

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """The options of a channel.

    `idempotent_methods`: full names (`/podracer.worker.v1.WorkerService/GetStatus`) of calls that
    may be repeated. `timeout_s`: the default deadline of unary calls. With `tls` the peer must have
    the role `server`: orchestrator, learner…; `allow_insecure` permits plaintext without TLS. Unix
    sockets need neither."""

    idempotent_methods: Collection[str] = ()
    timeout_s: float = limits.UNARY_TIMEOUT_S
    message_bytes: int = limits.MESSAGE_BYTES
    allow_insecure: bool = False
    tls: TlsFolder | TlsMaterial | None = None
    server: str = ""

    def grpc_options(self, address: Address) -> list[tuple[str, Any]]:
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", self.message_bytes),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.keepalive_time_ms", int(limits.CLIENT_KEEPALIVE_S * 1000)),
            ("grpc.keepalive_timeout_ms", int(limits.KEEPALIVE_TIMEOUT_S * 1000)),
            ("grpc.initial_reconnect_backoff_ms", int(limits.RECONNECT_INITIAL_S * 1000)),
            # By this name gRPC means how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", int(limits.CONNECT_TIMEOUT_S * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(limits.RECONNECT_MAXIMUM_S * 1000)),
            ("grpc.service_config", service_config(self.idempotent_methods)),
        ]
        if address.is_local:
            # a proxy of the environment does not know our loopback
            options.append(("grpc.enable_http_proxy", 0))
        if self.tls is not None and self.server:
            options.append(("grpc.ssl_target_name_override", role_name(self.server)))
        return options

    def credentials(self, address: Address) -> grpc.ChannelCredentials | None:
        """The credentials; None for plain text. Raises InvalidInput for certificates that cannot be
        read any more."""
        return None if self.tls is None or address.is_unix else self.tls.channel_credentials()


def service_config(idempotent_methods: Collection[str]) -> str:
    """gRPC's service config: retry these methods on UNAVAILABLE, with bounded attempts and
    back-off.

    Also on RESOURCE_EXHAUSTED, after the time that the server names; the server forbids it if
    waiting does not help."""
    if not idempotent_methods:
        return "{}"
    names = [method.strip("/").split("/") for method in sorted(idempotent_methods)]
    policy = {
        "maxAttempts": limits.RETRY_ATTEMPTS,
        "initialBackoff": f"{limits.RETRY_INITIAL_S}s",
        "maxBackoff": f"{limits.RETRY_MAXIMUM_S}s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    }
    config = {
        "methodConfig": [
            {"name": [{"service": s, "method": m} for s, m in names], "retryPolicy": policy}
        ]
    }
    return json.dumps(config)


def open_channel(
    address: str, token: str | TokenSource | None = None, options: ChannelOptions | None = None
) -> grpc.Channel:
    """A channel to `address`; it connects at the first call.

    Every call carries `token`, unless the call's own metadata has one (`auth.bearer`); a source
    (`tokens.FileToken`) is read each time. Raises InvalidInput for a malformed address, or one that
    requires TLS."""
    options = options or ChannelOptions()
    parsed = _target(address, options)
    credentials, grpc_options = options.credentials(parsed), options.grpc_options(parsed)
    if credentials is None:
        channel = grpc.insecure_channel(str(parsed), grpc_options)
    else:
        channel = grpc.secure_channel(str(parsed), credentials, grpc_options)
    return grpc.intercept_channel(channel, CallInterceptor(_policy(parsed, token, options)))


def open_aio_channel(
    address: str, token: str | TokenSource | None = None, options: ChannelOptions | None = None
) -> grpc.aio.Channel:
    """`open_channel` for asyncio."""
    options = options or ChannelOptions()
    parsed = _target(address, options)
    credentials, grpc_options = options.credentials(parsed), options.grpc_options(parsed)
    interceptors = aio_interceptors(_policy(parsed, token, options))
    if credentials is None:
        return grpc.aio.insecure_channel(
            str(parsed), options=grpc_options, interceptors=interceptors
        )
    return grpc.aio.secure_channel(
        str(parsed), credentials, options=grpc_options, interceptors=interceptors
    )


def _target(text: str, options: ChannelOptions) -> Address:
    address = parse_address(text)
    if not address.is_unix and address.port == 0:
        raise InvalidInput(
            f"address {text!r}: a client needs the port", reason="INVALID_ADDRESS", address=text
        )
    if not address.is_local and options.tls is None:
        if not options.allow_insecure:
            raise InvalidInput(
                f"cannot call {address} without TLS: not a loopback address; the token would cross "
                "the network in plain text (allow insecure connections to do it all the same)",
                reason="INSECURE_ADDRESS",
                address=address,
            )
        logger.warning(
            "calling %s without TLS: the token and all data cross the network in plain text",
            address,
        )
    return address


def _policy(
    address: Address, token: str | TokenSource | None, options: ChannelOptions
) -> CallPolicy:
    if isinstance(token, str):
        text = token
        return CallPolicy(str(address), lambda: text, options.timeout_s)
    return CallPolicy(str(address), token, options.timeout_s)


class ClientCall:
    """One unary call, from its beginning to `end`."""

    def __init__(self, method: str | bytes) -> None:
        self._method = short_name(method if isinstance(method, str) else method.decode())
        self._span = NO_SPAN if current() is NO_SPAN else span(self._method, kind="client")
        self._began_at = time.perf_counter()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata with the span of the call."""
        return ((TRACEPARENT, self._span.traceparent),) if self._span.traceparent else ()

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        """The call is over, successful or not."""
        self._span.set(code=code.name)
        self._span.end("" if code is grpc.StatusCode.OK else code.name)
        metrics.RPC_CLIENT.record(
            time.perf_counter() - self._began_at, method=self._method, code=code.name
        )

    def end_with(self, outcome: Any) -> None:
        """The call is over when the outcome of a blocking or started call is."""
        outcome.add_done_callback(lambda ended: self.end(ended.code()))


Details: TypeAlias = grpc.ClientCallDetails


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The policy for the calls of one channel to `peer`."""

    peer: str
    token: TokenSource | None = None
    timeout_s: float = limits.UNARY_TIMEOUT_S

    def metadata(
        self, given: tuple[tuple[str, str | bytes], ...]
    ) -> tuple[tuple[str, str | bytes], ...]:
        """`given` with the channel's token, unless the call has its own (`auth.bearer`)."""
        if self.token is None or any(key == AUTHORIZATION for key, _ in given):
            return given
        return (*given, *bearer(self.token()))

    def error(
        self, details: grpc.ClientCallDetails | grpc.aio.ClientCallDetails, error: grpc.RpcError
    ) -> Exception:
        method = (
            details.method if isinstance(details.method, str) else bytes(details.method).decode()
        )
        return from_rpc_error(error, peer=self.peer, method=method)


@dataclass(frozen=True)
class _CallDetails(grpc.ClientCallDetails):
    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class CallInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Applies a CallPolicy. `stub.Method.future(…)` keeps gRPC's errors: wrap its result in
    `translated_errors`."""

    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Details, request: Any
    ) -> Any:
        call = ClientCall(client_call_details.method)
        details = self._details(client_call_details, self._policy.timeout_s, call.metadata)
        outcome = continuation(details, request)
        call.end_with(outcome)
        return self._checked(details, outcome)

    def intercept_stream_unary(
        self,
        continuation: Callable[..., Any],
        client_call_details: Details,
        request_iterator: Iterator[Any],
    ) -> Any:
        details = self._details(client_call_details, None)
        return self._checked(details, continuation(details, request_iterator))

    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Details, request: Any
    ) -> Any:
        details = self._details(client_call_details, None)
        return ResponseStream(continuation(details, request), self._policy, details)

    def intercept_stream_stream(
        self,
        continuation: Callable[..., Any],
        client_call_details: Details,
        request_iterator: Iterator[Any],
    ) -> Any:
        details = self._details(client_call_details, None)
        return ResponseStream(continuation(details, request_iterator), self._policy, details)

    def _details(
        self,
        given: Details,
        timeout_s: float | None,
        added: tuple[tuple[str, str | bytes], ...] = (),
    ) -> _CallDetails:
        return _CallDetails(
            method=given.method,
            timeout=timeout_s if given.timeout is None else given.timeout,
            metadata=self._policy.metadata((*(given.metadata or ()), *added)),
            credentials=given.credentials,
            wait_for_ready=given.wait_for_ready,
            compression=given.compression,
        )

    def _checked(self, details: _CallDetails, outcome: Any) -> Any:
        """Raise for a call that is over and failed; a blocking call's outcome always is over."""
        if (
            isinstance(outcome, grpc.RpcError)
            and isinstance(outcome, grpc.Future)
            and outcome.done()
        ):
            error = outcome.exception()
            if isinstance(error, grpc.RpcError):
                raise self._policy.error(details, error) from error
        return outcome


class ResponseStream:
    """The responses of a stream, and the call itself (`cancel`, `code`, …); iterating raises
    PodracerErrors."""

    def __init__(self, call: Any, policy: CallPolicy, details: Details) -> None:
        self._call = call
        self._policy = policy
        self._details = details

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            # It is the call itself, and its traceback leads to it: a circle would keep the channel
            # for long.
            raise self._policy.error(self._details, error) from error.with_traceback(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


AioDetails: TypeAlias = grpc.aio.ClientCallDetails


class _Interceptor(grpc.aio.ClientInterceptor):
    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy

    def _applied(
        self,
        given: AioDetails,
        timeout_s: float | None,
        added: tuple[tuple[str, str | bytes], ...] = (),
    ) -> AioDetails:
        return grpc.aio.ClientCallDetails(
            given.method,
            timeout_s if given.timeout is None else given.timeout,
            grpc.aio.Metadata(*self._policy.metadata((*(given.metadata or ()), *added))),
            given.credentials,
            given.wait_for_ready,
        )

    async def _responses(self, call: Any, details: AioDetails) -> AsyncIterator[Any]:
        try:
            async for response in call:
                yield response
        except grpc.RpcError as error:
            raise self._policy.error(details, error) from error


class _UnaryUnary(_Interceptor, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: AioDetails, request: Any
    ) -> Any:
        observed = ClientCall(client_call_details.method)
        details = self._applied(client_call_details, self._policy.timeout_s, observed.metadata)
        code = grpc.StatusCode.CANCELLED
        try:
            call = await continuation(details, request)
            try:
                await call
            except grpc.RpcError as error:
                code = (
                    error.code()
                    if isinstance(error, grpc.aio.AioRpcError)
                    else grpc.StatusCode.UNKNOWN
                )
                raise self._policy.error(details, error) from error
            code = grpc.StatusCode.OK
            return call
        finally:
            observed.end(code)


class _UnaryStream(_Interceptor, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: AioDetails, request: Any
    ) -> Any:
        details = self._applied(client_call_details, None)
        return self._responses(await continuation(details, request), details)


class _StreamUnary(_Interceptor, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self,
        continuation: Callable[..., Any],
        client_call_details: AioDetails,
        request_iterator: Any,
    ) -> Any:
        details = self._applied(client_call_details, None)
        return _StreamUnaryCall(
            await continuation(details, request_iterator), self._policy, details
        )


class _StreamStream(_Interceptor, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self,
        continuation: Callable[..., Any],
        client_call_details: AioDetails,
        request_iterator: Any,
    ) -> Any:
        details = self._applied(client_call_details, None)
        return self._responses(await continuation(details, request_iterator), details)


class _StreamUnaryCall(grpc.aio.StreamUnaryCall):  # type: ignore[type-arg]  # in its stubs only
    """A stream-unary call whose response raises PodracerErrors.

    It cannot be awaited inside the interceptor as a unary call is: its requests may still have to
    be written."""

    def __init__(self, call: Any, policy: CallPolicy, details: AioDetails) -> None:
        self._call = call
        self._policy = policy
        self._details = details

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            response = yield from self._call.__await__()
        except grpc.RpcError as error:
            raise self._policy.error(self._details, error) from error
        return response

    @property
    def _done_writing_flag(self) -> bool:
        return bool(self._call._done_writing_flag)  # grpc.aio looks at it before each write

    async def write(self, request: Any) -> None:
        await self._call.write(request)

    async def done_writing(self) -> None:
        await self._call.done_writing()

    def cancelled(self) -> bool:
        return bool(self._call.cancelled())

    def done(self) -> bool:
        return bool(self._call.done())

    def time_remaining(self) -> float | None:
        remaining: float | None = self._call.time_remaining()
        return remaining

    def cancel(self) -> bool:
        return bool(self._call.cancel())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.add_done_callback(callback)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        metadata: grpc.aio.Metadata = await self._call.initial_metadata()
        return metadata

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        metadata: grpc.aio.Metadata = await self._call.trailing_metadata()
        return metadata

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await self._call.code()
        return code

    async def details(self) -> str:
        return str(await self._call.details())

    async def wait_for_connection(self) -> None:
        await self._call.wait_for_connection()


def aio_interceptors(policy: CallPolicy) -> Sequence[grpc.aio.ClientInterceptor]:
    """The interceptors that apply a policy; grpc.aio sorts one object into only one of the four
    kinds."""
    return [kind(policy) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]
