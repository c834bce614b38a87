"""What a caller can do to a server without a token, and with one to its other callers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import Exhausted, InvalidInput, PodracerError, Unavailable
from podracer_platform.rpc import (
    CHECK,
    Admission,
    AioRpcServer,
    Authorizer,
    LeaseTokens,
    Role,
    ServerOptions,
    TokenFiles,
    bearer,
    create_aio_server,
    health_of,
    limits,
    open_aio_channel,
    open_channel,
)
from support.errors import raises
from tests.support.raw_http2 import RawConnection

MOST_BYTES = 5 << 20
SERVICE = "podracer.test.Gate"
RENEW, STREAM = f"/{SERVICE}/RenewLease", f"/{SERVICE}/Stream"
_EMPTY_EVALUATIONS = b"\x22\x00" * (8 << 20)
"""16 MiB of empty submessages in RenewLeaseRequest, which compress to 16 KiB and parse to 1.5
GiB."""


class Gate:
    """One unary method with a message that grows when it is parsed, and one stream."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.renewed: list[str] = []

    async def renew(self, request: pod_service_pb2.RenewLeaseRequest, context: Any) -> bytes:
        self.renewed.append(request.lease)
        if request.lease == "wait":
            await self.release.wait()
        return b"renewed"

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    def register(self, server: grpc.aio.Server) -> None:
        parse = pod_service_pb2.RenewLeaseRequest.FromString
        handlers = {
            "RenewLease": grpc.unary_unary_rpc_method_handler(self.renew, parse),
            "Stream": grpc.stream_stream_rpc_method_handler(self.stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def authorizer(tokens: Path) -> Authorizer:
    tokens.mkdir(exist_ok=True)
    for role in ("client", "pod"):
        (tokens / role).touch(mode=0o600)
    (tokens / "client").write_text("client-token\nother-token\n")
    (tokens / "pod").write_text("pod-token\n")
    roles = {Role.CLIENT, Role.POD, Role.LEASE}
    return Authorizer({RENEW: roles, STREAM: roles}, TokenFiles(tokens), LeaseTokens(b"s" * 32))


async def serve(tokens: Path) -> None:
    """The server of a process of its own."""
    options = ServerOptions(health="127.0.0.1:0", connection_streams=limits.CONTROL_STREAMS)
    async with await create_aio_server(
        "127.0.0.1:0", [Gate().register], authorizer(tokens), options
    ) as server:
        print(server.address, server.health_address, flush=True)
        await asyncio.Event().wait()


class Process:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.address, self.health = process.stdout.readline().split()
        self._process = psutil.Process(process.pid)

    @property
    def memory_bytes(self) -> int:
        size: int = self._process.memory_info().rss
        return size

    def renew(self, **options: Any) -> Any:
        with open_channel(self.address, "pod-token") as channel:
            request = pod_service_pb2.RenewLeaseRequest(lease="one").SerializeToString()
            return channel.unary_unary(RENEW)(request, timeout=60, **options)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    tokens = tmp_path_factory.mktemp("gate") / "tokens"
    code = (
        f"import asyncio, pathlib; from {__name__} import serve; "
        f"asyncio.run(serve(pathlib.Path({str(tokens)!r})))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        found = Process(child)
        for _ in range(4):  # the pools of its allocators fill, by some 10 MB
            with RawConnection(found.address) as warm:
                warm.open_calls(RENEW, 8300)
                found.renew()
        yield found
        child.terminate()


def test_half_open_calls_without_a_token_hold_nothing(process):
    """Found by an audit: 8,300 of them kept every other caller out, health included."""
    before = process.memory_bytes
    with RawConnection(process.address) as one:
        one.open_calls(RENEW, 8300)
        assert process.renew() == b"renewed"
        assert health_of(process.address) == health_of(process.health) == "SERVING"
        one.read()
        assert process.memory_bytes - before < MOST_BYTES


def test_a_large_request_without_a_token_is_not_read(process):
    """Found by an audit: 16 KiB on the wire took 1.5 GiB."""
    before = process.memory_bytes
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        with (
            grpc.insecure_channel(process.address) as channel,
            pytest.raises(grpc.RpcError) as refused,
        ):
            channel.unary_unary(RENEW)(_EMPTY_EVALUATIONS, timeout=60, compression=compression)
        assert refused.value.code() in (
            grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED
        )  # fmt: skip
    assert process.memory_bytes - before < MOST_BYTES


@pytest.mark.parametrize("body", [None, b"\x00\x00\x00\x00\x08half"])
def test_half_open_health_checks_fail_no_probe(process, body):
    """Found by an audit: 20 of them made the kubelet restart the process."""
    before = process.memory_bytes
    for address in (process.health, process.address):
        with RawConnection(address) as first, RawConnection(address) as second:
            first.open_calls(CHECK, 20, body=body)
            second.open_calls(CHECK, 20, body=body)
            assert health_of(address, "liveness") == "SERVING"
    assert process.memory_bytes - before < MOST_BYTES


def test_idle_connections_delay_nobody(process):
    connections = [RawConnection(process.address) for _ in range(300)]
    assert process.renew() == b"renewed"
    for connection in connections:
        connection.__exit__()


def test_a_compressed_request_is_refused(process):
    with pytest.raises(PodracerError, match="gzip"):
        process.renew(compression=grpc.Compression.Gzip)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest_asyncio.fixture
async def server(gate: Gate, tmp_path: Path) -> AsyncIterator[AioRpcServer]:
    options = ServerOptions({STREAM: 1 << 20}, concurrent_calls=64, places=2)
    async with await create_aio_server(
        "127.0.0.1:0", [gate.register], authorizer(tmp_path), options
    ) as server:
        yield server


@pytest_asyncio.fixture
async def channel(server: AioRpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with open_aio_channel(server.address, "client-token") as channel:
        yield channel


def request(lease: str) -> bytes:
    return pod_service_pb2.RenewLeaseRequest(lease=lease).SerializeToString()


async def test_a_request_has_a_size_for_its_method_before_it_is_parsed(channel, gate):
    with raises(Exhausted, "REQUEST_TOO_LARGE"):
        await channel.unary_unary(RENEW)(b"\x22\x00" * (150 << 10), timeout=60)
    with pytest.raises(InvalidInput, match="not a message"):
        await channel.unary_unary(RENEW)(b"\xff\xff", timeout=60)
    assert gate.renewed == []


async def test_a_request_that_does_not_come_ends_its_call(server, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_S", 0.1)
    async with open_aio_channel(server.address, "client-token") as channel:
        call = channel.stream_unary(RENEW)()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "has not arrived within 0.1 s" in await call.details()


async def test_one_token_cannot_keep_the_others_waiting(server, channel, gate):
    """Half-open, waiting and streaming calls of one token count; another token's pass, and those of
    leases always."""
    held = [channel.stream_unary(RENEW)() for _ in range(6)]
    held += [channel.stream_stream(STREAM)() for _ in range(12)]  # 8 of them find room
    waiting = [
        asyncio.ensure_future(channel.unary_unary(RENEW)(request("wait"), timeout=60))
        for _ in range(20)
    ]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
    with raises(Exhausted, "OVERLOADED", match="16 concurrent calls"):
        await done.pop()
    async with open_aio_channel(server.address) as others:
        for token in ("other-token", "pod-token", LeaseTokens(b"s" * 32).issue("one", 1)):
            for _ in range(40):
                answer = await others.unary_unary(RENEW)(
                    request("one"), timeout=60, metadata=bearer(token)
                )
                assert answer == b"renewed"
    gate.release.set()
    for call in held:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_lease_finds_room_where_everybody_else_does_not():
    admission = Admission(calls=8)
    with _held(admission, Role.CLIENT, "a", 2), _held(admission, Role.CLIENT, "b", 2):
        for role, token in ((Role.CLIENT, "a"), (Role.CLIENT, "b")):
            with raises(Exhausted, "OVERLOADED", match="limit of 2"):
                _held(admission, role, token, 1)
        with _held(admission, Role.CLIENT, "c", 2):
            with raises(Exhausted, "OVERLOADED", match="limit of 6"):
                _held(admission, Role.CLIENT, "d", 1)
            with _held(admission, Role.POD, "p", 2):
                with raises(Exhausted, "OVERLOADED", match="limit of 8"):
                    _held(admission, Role.POD, "p", 1)
                with _held(admission, Role.LEASE, "l", limits.LEASE_CALLS):
                    with raises(Exhausted, "OVERLOADED", match="lease"):
                        _held(admission, Role.LEASE, "l", 1)
                    _held(admission, Role.LEASE, "m", 1).close()
    assert admission._callers == {}


async def test_bytes_in_flight_have_a_limit(monkeypatch):
    monkeypatch.setattr(limits, "TOKEN_BYTES", 100)
    admission = Admission(calls=64)
    with admission.one_call(Role.CLIENT, "a", is_stream=True) as one:
        one.hold(60)
        with (
            admission.one_call(Role.CLIENT, "a", is_stream=False) as other,
            raises(Exhausted, "OVERLOADED", match="flight"),
        ):
            other.hold(60)
        one.hold(90)  # the next message of a stream takes the place of the former
    with admission.one_call(Role.CLIENT, "a", is_stream=False) as one:
        one.hold(100)


def _held(admission: Admission, role: Role, token: str, count: int) -> Any:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(admission.one_call(role, token, is_stream=False))
        return stack.pop_all()


async def test_a_stream_survives_the_age_of_its_connection(gate, tmp_path):
    """New calls go over a new connection meanwhile; after the grace the stream ends with
    UNAVAILABLE."""
    options = ServerOptions(connection_age_s=(0.3, 0.6))
    async with (
        await create_aio_server(
            "127.0.0.1:0", [gate.register], authorizer(tmp_path), options
        ) as server,
        open_aio_channel(server.address, "client-token") as channel,
    ):
        stream = channel.stream_stream(STREAM)()
        await stream.write(b"before")
        assert await stream.read() == b"before"
        end = asyncio.ensure_future(stream.read())
        while not end.done():
            assert await channel.unary_unary(RENEW)(request("one"), timeout=60) == b"renewed"
        with pytest.raises(Unavailable):
            await end
        assert await channel.unary_unary(RENEW)(request("one"), timeout=60) == b"renewed"
