"""An asyncio server and channel, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    Unauthenticated,
    Unavailable,
)
from podracer_platform.rpc import (
    AioRpcServer,
    ChannelOptions,
    ServerOptions,
    bearer,
    create_aio_server,
    open_aio_channel,
    open_channel,
)
from support.errors import raises

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest_asyncio.fixture
async def server(world: Any) -> AsyncIterator[AioRpcServer]:
    async with await create_aio_server(
        "127.0.0.1:0", [world.register_aio], world.authorizer
    ) as server:
        yield server


@pytest_asyncio.fixture
async def stub(server: AioRpcServer, world: Any) -> AsyncIterator[Any]:
    async with open_aio_channel(server.address, "pod-token") as channel:
        yield world.Stub(channel)


async def test_all_four_kinds_know_their_caller(stub):
    assert await stub.unary(b"hello") == b"pod  0"
    assert await _all(stub.unary_stream(b"hello")) == [b"pod  0"]
    assert await stub.stream_unary(iter([b"hello", b"-x"])) == b"pod  0-x"
    assert await _all(stub.stream_stream(iter([b"hello", b"many"]))) == [
        b"pod  0",
        b"many",
        b"many",
        b"many",
    ]


async def test_a_refused_call_is_answered_before_its_request_has_come(server, world):
    for token, expected in (
        (None, grpc.StatusCode.UNAUTHENTICATED),
        ("client-token", grpc.StatusCode.PERMISSION_DENIED),
    ):
        async with open_aio_channel(server.address, token) as channel:
            for kind in ("UnaryUnary", "StreamStream"):
                call = channel.stream_unary(f"/{world.service}/{kind}")()  # it sends no message
                assert await call.code() is expected
    assert world.aio_echo.requests == []


async def test_read_and_write_by_hand(stub):
    call = stub.stream_stream()
    await call.write(b"one")
    assert await call.read() == b"one"
    await call.write(b"NotFound")
    with pytest.raises(PodracerError, match="on purpose"):
        await call.read()
    upload = stub.stream_unary()
    await upload.write(b"one")
    await upload.write(b"two")
    await upload.done_writing()
    assert await upload == b"onetwo"
    assert await upload.code() is grpc.StatusCode.OK


async def test_concurrent_callers_are_not_mixed_up(stub, world):
    leases = [bearer(world.lease_tokens.issue(f"l{i}", i)) for i in range(20)]
    answers = await asyncio.gather(*(stub.unary(b"hello", metadata=lease) for lease in leases))
    assert answers == [f"lease l{i} {i}".encode() for i in range(20)]


async def test_errors_arrive_as_their_own_class(stub, world):
    for cls in world.error_classes:
        name = cls.__name__.encode()
        for call in (
            stub.unary(name),
            _all(stub.unary_stream(name)),
            stub.stream_unary(iter([name])),
            _all(stub.stream_stream(iter([name]))),
        ):
            with pytest.raises(PodracerError) as caught:
                await call
            assert type(caught.value) is cls
            assert caught.value.metadata == {"job": "j"}


async def test_unexpected_errors_leak_nothing(stub, caplog):
    calls = (
        lambda: stub.unary(b"bug"),
        lambda: _all(stub.unary_stream(b"bug")),
        lambda: _all(stub.stream_stream(iter([b"bug"]))),
    )
    for call in calls:
        caplog.clear()
        with pytest.raises(PodracerError, match="internal error") as caught:
            await call()
        assert "hunter2" not in str(caught.value)
        (record,) = [
            record for record in caplog.records if record.name.startswith("podracer_platform")
        ]
        assert caught.value.metadata["error_id"] in record.getMessage()
        assert record.exc_info is not None


async def test_abort_by_hand_stands(stub):
    with pytest.raises(InvalidInput, match="by hand"):
        await stub.unary(b"abort")


async def test_default_deadline(server, world):
    async with open_aio_channel(
        server.address, "pod-token", ChannelOptions(timeout_s=0.2)
    ) as channel:
        with pytest.raises(DeadlineExpired, match="Echo/UnaryUnary"):
            await world.Stub(channel).unary(b"wait")


async def test_only_idempotent_calls_are_repeated(server, world):
    options = ChannelOptions(idempotent_methods=[world.unary_name])
    async with open_aio_channel(server.address, "pod-token", options) as channel:
        world.aio_echo.failures_left = 2
        assert await world.Stub(channel).unary(b"again") == b"again"
        assert len(world.aio_echo.requests) == 3


async def test_a_full_server_says_when_to_come_again(world):
    server = await create_aio_server(
        "127.0.0.1:0", [world.register_aio], world.authorizer, ServerOptions(concurrent_calls=1)
    )
    again = ChannelOptions(idempotent_methods=[world.unary_name])
    async with (
        server,
        open_aio_channel(server.address, "pod-token") as once,
        open_aio_channel(server.address, "pod-token", again) as patient,
    ):
        waiting = world.Stub(once).stream_stream()
        await waiting.write(b"one")
        assert await waiting.read() == b"one"
        with raises(Exhausted, "OVERLOADED") as refused:
            await world.Stub(once).unary(b"x")
        assert 0.5 <= float(refused.value.metadata["retry_after_s"]) <= 2.0
        asyncio.get_running_loop().call_later(0.2, waiting.cancel)
        assert await world.Stub(patient).unary(b"x") == b"x"


async def test_calls_that_come_at_once_wait_for_the_server(server, world):
    """More than gRPC itself lets wait: the loop is busy while they come."""
    burst = f"""
import asyncio
from podracer_platform.rpc import open_aio_channel
async def main():
    async with open_aio_channel({server.address!r}, "pod-token") as channel:
        call = channel.unary_unary({world.unary_name!r})
        answers = await asyncio.gather(*(call(b"x", timeout=60) for _ in range(3000)))
    assert answers == [b"x"] * 3000
asyncio.run(main())
"""
    callers = await asyncio.create_subprocess_exec(sys.executable, "-c", burst)
    for _ in range(4):
        await asyncio.sleep(0.5)
        time.sleep(1.0)
    assert await callers.wait() == 0


async def test_cancelled_calls_end_the_handler(stub, world, caplog):
    call = stub.stream_stream()
    await call.write(b"one")
    assert await call.read() == b"one"
    call.cancel()
    for _ in range(3000):
        if world.aio_echo.ended:
            break
        await asyncio.sleep(0.01)
    assert world.aio_echo.ended == ["stream"]
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(stub.unary(b"wait"), 0.1)
    await asyncio.sleep(0.1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_without_a_server():
    async with open_aio_channel("127.0.0.1:1", "pod-token") as channel:
        with pytest.raises(Unavailable, match=r"/a/B at 127\.0\.0\.1:1"):
            await channel.unary_unary("/a/B")(b"")
        with pytest.raises(Unavailable):
            await _all(channel.unary_stream("/a/B")(b""))


async def test_health_is_open_and_tells_draining(world):
    server = await create_aio_server("127.0.0.1:0", [world.register_aio], world.authorizer)
    await server.start()
    drained: list[str] = []

    async def tell() -> None:
        drained.append("told")

    server.on_drain(tell)
    async with (
        open_aio_channel(server.address) as channel,
        open_aio_channel(server.address, "pod-token") as pod,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        assert (
            await health.Check(health_pb2.HealthCheckRequest(service=world.service))
        ).status == SERVING
        await server.set_ready(False)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status != SERVING
        assert await world.Stub(pod).unary(b"hello") == b"pod  0", "calls are answered all the same"
        with pytest.raises(PodracerError, match="not found"):  # only Check is served
            await health.Watch(health_pb2.HealthCheckRequest(service=world.service)).read()
        await asyncio.wait_for(server.drain(1.0), 30.0)
    assert drained == ["told"]


async def test_drain_ends_what_does_not_end(world):
    server = await create_aio_server("127.0.0.1:0", [world.register_aio], world.authorizer)
    await server.start()
    async with open_aio_channel(server.address, "pod-token") as channel:
        waiting = world.Stub(channel).unary_stream(b"wait")
        assert await waiting.read() == b"waiting"
        await server.drain(0.2)
        with pytest.raises(Unavailable):
            await waiting.read()


async def test_reflection_needs_a_token(server, world):
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with open_aio_channel(server.address, "client-token") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = await _all(stub.ServerReflectionInfo(iter([request])))
        assert world.service in {service.name for service in answer.list_services_response.service}
    async with open_aio_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(Unauthenticated):
            await _all(stub.ServerReflectionInfo(iter([request])))


async def test_a_synchronous_client_understands_an_asyncio_server(server, world):
    def call() -> bytes:
        with open_channel(server.address, "pod-token") as channel:
            stub = world.Stub(channel)
            with pytest.raises(InvalidInput):
                list(stub.stream_stream(iter([b"InvalidInput"])))
            answer: bytes = stub.unary(b"hello")
            return answer

    assert await asyncio.to_thread(call) == b"pod  0"


async def _all(responses: Any) -> list[Any]:
    return [response async for response in responses]
