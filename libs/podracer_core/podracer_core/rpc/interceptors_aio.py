"""What an asyncio channel adds to each call: the token, a deadline, and errors as PodracerErrors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

import grpc

from podracer_core.rpc.interceptors import CallPolicy
from podracer_core.rpc.observation import ClientCall

Details: TypeAlias = grpc.aio.ClientCallDetails


class _Interceptor(grpc.aio.ClientInterceptor):
    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy

    def _applied(
        self, given: Details, timeout_s: float | None, added: tuple[tuple[str, str | bytes], ...] = ()
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
                code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
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


class _StreamStream(_Interceptor, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Details, request_iterator: Any
    ) -> Any:
        details = self._applied(client_call_details, None)
        return self._responses(await continuation(details, request_iterator), details)


def aio_interceptors(policy: CallPolicy) -> Sequence[grpc.aio.ClientInterceptor]:
    """The interceptors that apply a policy; grpc.aio sorts one object into only one of its four kinds.

    None is for calls that stream requests and get one answer: no asyncio client of ours makes any.
    """
    return [kind(policy) for kind in (_UnaryUnary, _UnaryStream, _StreamStream)]
