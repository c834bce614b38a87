"""A tiny service for both kinds of server, over raw bytes: each request says what should happen.

    hello        answers the caller's role and lease
    a class name raises that error
    bug          raises an unexpected error with a secret in its text
    wait         waits until the call ends
Streams answer each request, `many` answers three times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from podracer_core import errors
from podracer_core.errors import FieldViolation, InvalidInput, PodracerError, UserCodeFailed
from podracer_platform.rpc.auth import Authorizer, current_caller
from podracer_platform.rpc.tokens import LeaseTokens, Role, TokenFiles

SERVICE = "podracer.test.Echo"
METHODS = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")


class Echo:
    """Counts what it was asked, so that tests see retries."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.ended: list[str] = []
        self.failures_left = 0

    def answer(self, request: bytes) -> bytes:
        self.requests.append(request)
        text = request.decode()
        if self.failures_left > 0:
            self.failures_left -= 1
            raise errors.Unavailable("not yet")
        if text == "bug":
            raise ValueError("the password is hunter2")
        if text == "InvalidInput":
            raise InvalidInput(
                "bad search", violations=[FieldViolation("search.space", "is empty")], job="j"
            )
        if text == "UserCodeFailed":
            raise UserCodeFailed(
                "the environment raised", user_traceback="Traceback…\nKeyError: 'x'", job="j"
            )
        if text in vars(errors):
            raise getattr(errors, text)("on purpose", reason="ON_PURPOSE", job="j")
        caller = current_caller()
        return (
            f"{caller.role} {caller.lease_id} {caller.fence}".encode()
            if text == "hello"
            else request
        )


class SyncEcho(Echo):
    def unary(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        while request == b"wait" and context.is_active():
            time.sleep(0.01)
        return self.answer(request)

    def unary_stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from self.stream_stream(iter([request]), context)

    def stream_unary(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return b"".join([self.answer(request) for request in requests])

    def stream_stream(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            for request in requests:
                while request == b"wait" and context.is_active():
                    time.sleep(0.01)
                for _ in range(3 if request == b"many" else 1):
                    yield self.answer(request)
        finally:
            self.ended.append("stream")


class AioEcho(Echo):
    async def unary(self, request: bytes, context: Any) -> bytes:
        if request == b"wait":
            await asyncio.sleep(60)
        if request == b"abort":
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "by hand")
        return self.answer(request)

    async def unary_stream(self, request: bytes, context: Any) -> None:
        if request == b"wait":
            await context.write(b"waiting")
            await asyncio.sleep(60)
        for _ in range(3 if request == b"many" else 1):
            # the other way to stream, without a generator
            await context.write(self.answer(request))

    async def stream_unary(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([self.answer(request) async for request in requests])

    async def stream_stream(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                if request == b"wait":
                    await asyncio.sleep(60)
                for _ in range(3 if request == b"many" else 1):
                    yield self.answer(request)
        finally:
            self.ended.append("stream")


def _register(echo: Any, server: Any) -> None:
    handlers = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(echo.unary),
        "Forgotten": grpc.unary_unary_rpc_method_handler(echo.unary),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(echo.unary_stream),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(echo.stream_unary),
        "StreamStream": grpc.stream_stream_rpc_method_handler(echo.stream_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class Stub:
    """What a generated stub would be, for either kind of channel."""

    def __init__(self, channel: Any) -> None:
        self.unary = channel.unary_unary(f"/{SERVICE}/UnaryUnary")
        self.forgotten = channel.unary_unary(f"/{SERVICE}/Forgotten")
        self.missing = channel.unary_unary(f"/{SERVICE}/Missing")
        self.unary_stream = channel.unary_stream(f"/{SERVICE}/UnaryStream")
        self.stream_unary = channel.stream_unary(f"/{SERVICE}/StreamUnary")
        self.stream_stream = channel.stream_stream(f"/{SERVICE}/StreamStream")


class EchoWorld:
    """What the tests share: the service, its registration, the tokens and the stub."""

    Stub = Stub
    service = SERVICE
    unary_name = f"/{SERVICE}/UnaryUnary"
    error_classes = tuple(
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, PodracerError)
        and value is not errors.TimeUp
    )

    def __init__(self, token_directory: Path) -> None:
        self.token_directory = token_directory
        for role in ("client", "pod", "control"):
            (token_directory / role).touch(mode=0o600)
            (token_directory / role).write_text(f"{role}-token\n")
        self.lease_tokens = LeaseTokens(b"s" * 32)
        table = {f"/{SERVICE}/{method}": {Role.POD, Role.LEASE} for method in METHODS}
        self.authorizer = Authorizer(table, TokenFiles(token_directory), self.lease_tokens)
        self.sync_echo = SyncEcho()
        self.aio_echo = AioEcho()

    def register_sync(self, server: grpc.Server) -> None:
        _register(self.sync_echo, server)

    def register_aio(self, server: grpc.aio.Server) -> None:
        _register(self.aio_echo, server)


@pytest.fixture
def world(tmp_path: Path) -> EchoWorld:
    directory = tmp_path / "tokens"
    directory.mkdir()
    return EchoWorld(directory)
