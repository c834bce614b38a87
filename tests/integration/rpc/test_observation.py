"""Calls of both kinds of channel and server: counted by how they ended, and spans where they belong
to a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from podracer_core.errors import NotFound, PodracerError
from podracer_platform.rpc import create_aio_server, create_server, open_aio_channel, open_channel
from podracer_platform.telemetry import FinishedSpan, metrics, span
from support.processes import wait_until
from support.telemetry import CountedMetrics, KeptSpans, counted_metrics, kept_spans

NAME = "Echo/UnaryUnary"


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    with kept_spans() as kept:
        yield kept


@pytest.fixture
def counted() -> Iterator[CountedMetrics]:
    with counted_metrics() as counted:
        yield counted


@pytest.fixture
def stub(world: Any) -> Iterator[Any]:
    with (
        create_server("127.0.0.1:0", [world.register_sync], world.authorizer) as server,
        open_channel(server.address, "pod-token") as channel,
    ):
        yield world.Stub(channel)


def both(kept: KeptSpans, kind: str) -> FinishedSpan:
    """The half of a call that a client, or a server, has seen; the server's may end after the
    client's."""
    return wait_until(
        lambda: next((one for one in kept.spans if one.kind == kind), None),
        10,
        f"the {kind}'s span",
    )


def test_a_call_within_a_span_is_one_on_both_sides(stub, kept):
    with span("outer", begins=True):
        stub.unary(b"hello")
    server, client = both(kept, "server"), both(kept, "client")
    assert (client.name, server.name) == (NAME, NAME)
    assert client.parent_id == kept["outer"].context.span_id
    assert server.parent_id == client.context.span_id
    assert server.context.trace_id == kept["outer"].context.trace_id
    assert server.attributes == client.attributes == {"code": "OK"}


def test_a_call_that_fails_says_how(stub, kept):
    with span("outer", begins=True), pytest.raises(NotFound):
        stub.unary(b"NotFound")
    server, client = both(kept, "server"), both(kept, "client")
    assert (server.attributes["code"], client.attributes["code"]) == ("NOT_FOUND", "NOT_FOUND")
    assert (client.error, server.error) == ("NOT_FOUND", "NotFound: on purpose")


def test_a_call_that_is_begun_ends_later(stub, kept):
    with span("outer", begins=True):
        call = stub.unary.future(b"hello")
    assert call.result() == b"pod  0"
    assert both(kept, "client").attributes == {"code": "OK"}


def test_without_a_span_there_is_none_and_streams_have_none(stub, kept):
    stub.unary(b"hello")
    with span("outer", begins=True):
        assert list(stub.stream_stream(iter([b"hello"]))) == [b"pod  0"]
        assert list(stub.unary_stream(b"many")) == [b"many"] * 3
    assert [one.name for one in kept.spans] == ["outer"]


def test_calls_are_counted_by_how_they_ended(stub, counted):
    stub.unary(b"hello")
    stub.unary(b"hello")
    for failing in (b"NotFound", b"bug"):
        with pytest.raises(PodracerError):
            stub.unary(failing)
    list(stub.stream_stream(iter([b"hello"])))
    wanted = {(NAME, "OK"): 2, (NAME, "NOT_FOUND"): 1, (NAME, "INTERNAL"): 1}
    assert counted.counts(metrics.RPC_CLIENT) == wanted
    on_server = wanted | {("Echo/StreamStream", "OK"): 1}
    wait_until(lambda: counted.counts(metrics.RPC_SERVER) == on_server, 60, "the server's count")


async def test_the_same_with_asyncio(world, kept, counted):
    async with (
        await create_aio_server("127.0.0.1:0", [world.register_aio], world.authorizer) as server,
        open_aio_channel(server.address, "pod-token") as channel,
    ):
        stub = world.Stub(channel)
        with span("outer", begins=True):
            await stub.unary(b"hello")
            assert [one async for one in stub.stream_stream(iter([b"hello"]))] == [b"pod  0"]
        with pytest.raises(NotFound):
            await stub.unary(b"NotFound")
    (seen,), (made,) = (
        [one for one in kept.spans if one.kind == kind] for kind in ("server", "client")
    )
    assert made.parent_id == kept["outer"].context.span_id
    assert seen.parent_id == made.context.span_id
    assert counted.counts(metrics.RPC_CLIENT) == {(NAME, "OK"): 1, (NAME, "NOT_FOUND"): 1}
    assert counted.counts(metrics.RPC_SERVER) == {
        (NAME, "OK"): 1,
        (NAME, "NOT_FOUND"): 1,
        ("Echo/StreamStream", "OK"): 1,
    }
