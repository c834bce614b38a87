"""The interceptors of synchronous channels: token, deadline, and errors as PodracerErrors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from podracer_platform.rpc import limits
from podracer_platform.rpc.auth import AUTHORIZATION, bearer
from podracer_platform.rpc.observation import ClientCall
from podracer_platform.rpc.status import from_rpc_error
from podracer_platform.rpc.tokens import TokenSource

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
