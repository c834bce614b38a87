"""The interceptors of asyncio channels: token, deadline, and errors as PodracerErrors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from podracer_platform.rpc.interceptors import CallPolicy
from podracer_platform.rpc.observation import ClientCall

Details: TypeAlias = grpc.aio.ClientCallDetails

if TYPE_CHECKING:
    StreamUnaryCallOfAny = grpc.aio.StreamUnaryCall[Any, Any]
else:
    StreamUnaryCallOfAny = grpc.aio.StreamUnaryCall  # generic in its stubs only


class _Interceptor(grpc.aio.ClientInterceptor):
    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy

    def _applied(
        self,
        given: Details,
        timeout_s: float | None,
        added: tuple[tuple[str, str | bytes], ...] = (),
    ) -> Details:
        return grpc.aio.ClientCallDetails(
            given.method,
            timeout_s if given.timeout is None else given.timeout,
            grpc.aio.Metadata(*self._policy.metadata((*(given.metadata or ()), *added))),
            given.credentials,
            given.wait_for_ready,
        )

    async def _responses(self, call: Any, details: Details) -> AsyncIterator[Any]:
        try:
            async for response in call:
                yield response
        except grpc.RpcError as error:
            raise self._policy.error(details, error) from error


class _UnaryUnary(_Interceptor, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Details, request: Any
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
        self, continuation: Callable[..., Any], client_call_details: Details, request: Any
    ) -> Any:
        details = self._applied(client_call_details, None)
        return self._responses(await continuation(details, request), details)


class _StreamUnary(_Interceptor, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Details, request_iterator: Any
    ) -> Any:
        details = self._applied(client_call_details, None)
        return _StreamUnaryCall(
            await continuation(details, request_iterator), self._policy, details
        )


class _StreamStream(_Interceptor, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Details, request_iterator: Any
    ) -> Any:
        details = self._applied(client_call_details, None)
        return self._responses(await continuation(details, request_iterator), details)


class _StreamUnaryCall(StreamUnaryCallOfAny):
    """A stream-unary call whose response raises PodracerErrors.

    It cannot be awaited inside the interceptor as a unary call is: its requests may still have to
    be written."""

    def __init__(self, call: Any, policy: CallPolicy, details: Details) -> None:
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
