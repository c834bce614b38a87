"""A server in a thread, with blocking handlers, and a synchronous channel, over real gRPC."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PermissionRefused,
    PodracerError,
    Unauthenticated,
    Unavailable,
    UserCodeFailed,
)
from podracer_platform.rpc import (
    ChannelOptions,
    RpcServer,
    ServerOptions,
    StreamCall,
    bearer,
    create_server,
    open_channel,
    translated_errors,
)
from support.errors import raises
from support.processes import wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def server(world: Any) -> Iterator[RpcServer]:
    with create_server("127.0.0.1:0", [world.register_sync], world.authorizer) as server:
        yield server


@pytest.fixture
def stub(server: RpcServer, world: Any) -> Iterator[Any]:
    with open_channel(server.address, "pod-token") as channel:
        yield world.Stub(channel)


def test_port_zero_gives_a_real_address(server):
    assert server.address.startswith("127.0.0.1:")
    assert not server.address.endswith(":0")


def test_all_four_kinds_know_their_caller(stub):
    assert stub.unary(b"hello") == b"pod  0"
    assert list(stub.unary_stream(b"hello")) == [b"pod  0"]
    assert stub.stream_unary(iter([b"hello", b"-x"])) == b"pod  0-x"
    assert list(stub.stream_stream(iter([b"hello", b"many"]))) == [
        b"pod  0",
        b"many",
        b"many",
        b"many",
    ]


def test_callers_do_not_leak_between_calls(server, world):
    """Two streams at once, each on its own thread, and a third call after them."""
    with open_channel(server.address, "pod-token") as channel:
        stub = world.Stub(channel)
        lease = bearer(world.lease_tokens.issue("l1", 9))
        theirs = stub.stream_stream(iter([b"hello"] * 3), metadata=lease)
        ours = stub.stream_stream(iter([b"hello"] * 3))
        assert list(zip(theirs, ours, strict=True)) == [(b"lease l1 9", b"pod  0")] * 3
        assert stub.unary(b"hello") == b"pod  0"


def test_errors_arrive_as_their_own_class(stub, world):
    for cls in world.error_classes:
        name = cls.__name__.encode()
        calls = [
            lambda name=name: stub.unary(name),
            lambda name=name: list(stub.unary_stream(name)),
            lambda name=name: stub.stream_unary(iter([name])),
            lambda name=name: list(stub.stream_stream(iter([name]))),
        ]
        for call in calls:
            with pytest.raises(PodracerError) as caught:
                call()
            assert type(caught.value) is cls
            assert caught.value.metadata == {"job": "j"}


def test_error_details_arrive(stub):
    with pytest.raises(InvalidInput) as invalid:
        stub.unary(b"InvalidInput")
    assert [str(violation) for violation in invalid.value.violations] == ["search.space: is empty"]
    with pytest.raises(UserCodeFailed) as failed:
        stub.unary(b"UserCodeFailed")
    assert failed.value.user_traceback.endswith("KeyError: 'x'")


def test_responses_before_an_error_arrive(stub):
    responses = stub.stream_stream(iter([b"one", b"NotFound"]))
    assert next(responses) == b"one"
    with pytest.raises(PodracerError, match="on purpose"):
        next(responses)


def test_unexpected_errors_leak_nothing(stub, caplog):
    for call in (lambda: stub.unary(b"bug"), lambda: list(stub.stream_stream(iter([b"bug"])))):
        caplog.clear()
        with pytest.raises(PodracerError, match="internal error") as caught:
            call()
        assert "hunter2" not in str(caught.value)
        (record,) = [
            record for record in caplog.records if record.name.startswith("podracer_platform")
        ]
        assert caught.value.metadata["error_id"] in record.getMessage()
        assert record.exc_info is not None
        assert "hunter2" in str(record.exc_info[1])


def test_methods_missing_from_table_and_server(stub, world):
    with pytest.raises(PermissionRefused, match="role"):
        stub.forgotten(b"hello")
    with raises(PodracerError, "UNIMPLEMENTED"):
        stub.missing(b"hello")
    assert world.sync_echo.requests == []


def test_rotated_token_works_at_once(server, world):
    with open_channel(server.address, "rotated") as channel:
        with pytest.raises(Unauthenticated):
            world.Stub(channel).unary(b"hello")
        (world.token_directory / "pod").write_text("pod-token\nrotated\n")
        assert world.Stub(channel).unary(b"hello") == b"pod  0"


def test_default_deadline(server, world):
    with open_channel(server.address, "pod-token", ChannelOptions(timeout_s=0.2)) as channel:
        with pytest.raises(DeadlineExpired, match="Echo/UnaryUnary"):
            world.Stub(channel).unary(b"wait")
        assert world.Stub(channel).unary(b"late", timeout=5) == b"late"


def test_only_idempotent_calls_are_repeated(server, world):
    echo = world.sync_echo
    with open_channel(
        server.address, "pod-token", ChannelOptions(idempotent_methods=[world.unary_name])
    ) as channel:
        echo.failures_left = 2
        assert world.Stub(channel).unary(b"again") == b"again"
        assert len(echo.requests) == 3
        echo.failures_left = 1
        with pytest.raises(Unavailable):
            world.Stub(channel).stream_unary(iter([b"x"]))
        echo.failures_left = 100
        with pytest.raises(Unavailable):
            world.Stub(channel).unary(b"bounded")
        assert echo.requests.count(b"bounded") == 4


def test_without_a_server():
    with open_channel("127.0.0.1:1", "pod-token") as channel:
        with pytest.raises(Unavailable, match=r"/a/B at 127\.0\.0\.1:1"):
            channel.unary_unary("/a/B")(b"")
        with pytest.raises(Unavailable):
            list(channel.unary_stream("/a/B")(b""))


def test_cancelled_stream_ends_the_handler(stub, world, caplog):
    hold = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"one"
        hold.wait(60)

    responses = stub.stream_stream(requests())
    assert next(responses) == b"one"
    responses.cancel()
    with raises(Unavailable, "CANCELLED"):
        next(responses)
    hold.set()
    wait_until(lambda: world.sync_echo.ended == ["stream"])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("last", [b"", b"Unavailable", b"bug"])
def test_a_session_that_is_over_leaves_nothing_to_the_garbage_collector(server, world, last):
    """It would come late: a learner loses sessions all its life, and each holds rollouts and shared
    memory."""

    def session() -> tuple[weakref.ref[Any], ...]:
        with open_channel(server.address, "pod-token") as channel:
            call: StreamCall[bytes, bytes] = StreamCall(
                world.Stub(channel).stream_stream, lambda response: response
            )
            call.send(b"-x")
            assert call.receive(10.0) == b"-x"
            if last:
                call.send(last)
                with pytest.raises(PodracerError):
                    call.receive(10.0)
            call.close()
            return weakref.ref(call), weakref.ref(call._call), weakref.ref(call._call._call)

    gc.collect()
    gc.disable()
    try:
        left = session()
        deadline = time.monotonic() + 10.0  # threads of both libraries come to their end
        while any(one() is not None for one in left) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [one() for one in left] == [None] * 3
    finally:
        gc.enable()


def test_future_needs_the_helper(stub):
    assert stub.unary.future(b"x").result(5) == b"x"
    with pytest.raises(InvalidInput), translated_errors():
        stub.unary.future(b"InvalidInput").result(5)


def test_a_full_server_says_when_to_come_again_and_gets_its_callers_back(world):
    server = create_server(
        "127.0.0.1:0", [world.register_sync], world.authorizer, ServerOptions(concurrent_calls=1)
    )
    again = ChannelOptions(idempotent_methods=[world.unary_name])
    with (
        server,
        open_channel(server.address, "pod-token") as once,
        open_channel(server.address, "pod-token", again) as patient,
    ):
        waiting = _call_that_fills(world.Stub(once))
        with raises(Exhausted, "OVERLOADED") as refused:
            world.Stub(once).unary(b"x")
        assert 0.5 <= float(refused.value.metadata["retry_after_s"]) <= 2.0
        health = health_pb2_grpc.HealthStub(once)
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        threading.Timer(0.2, waiting.cancel).start()
        assert world.Stub(patient).unary(b"x") == b"x"


def test_what_waiting_does_not_help_is_not_tried_again(world):
    again = ChannelOptions(idempotent_methods=[world.unary_name])
    server = create_server("127.0.0.1:0", [world.register_sync], world.authorizer)
    with (
        server,
        open_channel(server.address, "pod-token", again) as channel,
        pytest.raises(Exhausted, match="on purpose"),
    ):
        world.Stub(channel).unary(b"Exhausted")
    assert world.sync_echo.requests.count(b"Exhausted") == 1


def test_health_is_open_and_tells_draining(world):
    server = create_server("127.0.0.1:0", [world.register_sync], world.authorizer)
    server.start()
    drained: list[str] = []
    server.on_drain(lambda: drained.append("told"))
    with open_channel(server.address) as channel, open_channel(server.address, "pod-token") as pod:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", world.service):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING
        with pytest.raises(PodracerError):
            health.Check(health_pb2.HealthCheckRequest(service="unknown"))
        with pytest.raises(PodracerError, match="not found"):  # only Check is served
            next(health.Watch(health_pb2.HealthCheckRequest(service=world.service)))
        running = world.Stub(pod).stream_stream(_slowly([b"one", b"two"], 0.3))
        assert next(running) == b"one"
        thread = threading.Thread(target=server.drain, args=(5.0,))
        thread.start()
        assert next(running) == b"two"  # a call in progress may end within the grace period
        assert list(running) == []
        thread.join(60)
    assert drained == ["told"]


def test_drain_ends_what_does_not_end(world):
    server = create_server("127.0.0.1:0", [world.register_sync], world.authorizer)
    server.start()
    with open_channel(server.address, "pod-token") as channel:
        waiting = world.Stub(channel).unary_stream(b"wait")
        wait_until(waiting.is_active)
        time.sleep(0.1)
        server.drain(0.2)
        with pytest.raises(Unavailable):
            next(waiting)


def test_reflection_needs_a_token(server, world):
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with open_channel(server.address, "client-token") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]))
        names = {service.name for service in answer.list_services_response.service}
        assert {world.service, "grpc.health.v1.Health"} <= names
    with open_channel(server.address) as channel, pytest.raises(Unauthenticated):
        list(
            reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
        )


def test_plain_grpc_client_sees_the_rich_status(server, world):
    """Without our channel (examples/clients): ordinary grpcio and its metadata."""
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        world.Stub(channel).unary(b"InvalidInput", metadata=bearer("pod-token"), timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "bad search"


def _slowly(requests: list[bytes], pause_s: float) -> Iterator[bytes]:
    for request in requests:
        yield request
        time.sleep(pause_s)


def _refused(stub: Any) -> bool:
    try:
        stub.unary(b"x", timeout=1)
    except Exhausted:
        return True
    return False


def _call_that_fills(stub: Any) -> Any:
    """A call that holds the server's only place; it starts again if the question for the place came
    before it."""
    calls = [stub.unary_stream(b"wait")]

    def is_full() -> bool:
        if not calls[-1].is_active():
            calls.append(stub.unary_stream(b"wait"))
        return _refused(stub)

    wait_until(is_full)
    return calls[-1]


def test_a_server_that_greets_late_is_waited_for(server, world):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_join_late, args=(listener, server.address), daemon=True)
        thread.start()
        with open_channel(f"127.0.0.1:{listener.getsockname()[1]}", "pod-token") as channel:
            assert world.Stub(channel).unary(b"hello") == b"pod  0"
    thread.join(60)


def _join_late(listener: socket.socket, address: str) -> None:
    """Take one connection, and only after a while hand its bytes to and fro."""
    with listener.accept()[0] as near:
        time.sleep(0.5)
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            other_way = threading.Thread(target=_copy, args=(far, near), daemon=True)
            other_way.start()
            _copy(near, far)
            other_way.join(60)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
