"""Spans: parents, what is recorded, and that nothing is without a recorder."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from podracer_platform.telemetry import (
    NO_SPAN,
    SpanContext,
    are_recorded,
    current,
    record_spans,
    span,
)

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_without_a_recorder_there_is_nothing():
    assert not are_recorded()
    with span("x", begins=True, size=1) as own:
        assert own is NO_SPAN
        assert current() is NO_SPAN
        own.set(size=2)
    assert own.traceparent == ""


def test_a_span_is_the_child_of_the_current_one(kept):
    with span("outer", begins=True, size=1) as outer:
        assert current() is outer
        with span("inner") as inner:
            inner.set(size=2, name="x")
        assert current() is outer
    assert current() is NO_SPAN
    assert kept["inner"].parent_id == kept["outer"].context.span_id
    assert kept["inner"].context.trace_id == kept["outer"].context.trace_id
    assert kept["outer"].parent_id == ""
    assert kept["inner"].attributes == {"size": 2, "name": "x"}
    assert (
        kept["outer"].start_ns
        <= kept["inner"].start_ns
        <= kept["inner"].end_ns
        <= kept["outer"].end_ns
    )


def test_a_parent_elsewhere(kept):
    with span("here", PARENT, kind="server") as own:
        context = SpanContext.parse(own.traceparent)
    assert context is not None
    assert context.trace_id == "a" * 32
    assert kept["here"].parent_id == "b" * 16
    assert kept["here"].context == context


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"01-{'a' * 32}-{'b' * 16}-01",
        f"00-{'A' * 32}-{'b' * 16}-01",
    ],
)
def test_no_parent_no_span(kept, parent):
    with span("x", parent) as own:
        assert own is NO_SPAN
    assert not kept.spans


def test_an_unrecorded_parent(kept):
    with span("x", PARENT[:-1] + "0", begins=True) as own:
        assert own is NO_SPAN
    assert not kept.spans


def test_of_some_traces_nothing_is_recorded(kept):
    record_spans([kept], lambda trace_id: False)
    with span("root", begins=True):
        pass
    with span("of another's", PARENT):
        pass
    assert [one.name for one in kept.spans] == ["of another's"]


def test_an_error_is_told(kept):
    with pytest.raises(ValueError, match="bad"), span("x", begins=True):
        raise ValueError("bad")
    assert kept["x"].error == "ValueError: bad"


def test_one_that_is_no_context(kept):
    with span("outer", begins=True) as outer:
        own = span("waits")
        assert current() is outer
    assert not [one for one in kept.spans if one.name == "waits"]
    own.end("lost")
    own.end()
    assert kept["waits"].parent_id == kept["outer"].context.span_id
    assert kept["waits"].error == "lost"


def test_one_that_began_before(kept):
    begun_ns = time.time_ns() - 2_000_000_000
    span("late", PARENT, start_ns=begun_ns).end()
    assert kept["late"].start_ns == begun_ns
    assert kept["late"].duration_s >= 2.0


def test_threads_have_their_own(kept):
    seen: list[object] = []
    with span("outer", begins=True) as outer:
        for context in (contextvars.Context(), contextvars.copy_context()):
            thread = threading.Thread(target=context.run, args=(lambda: seen.append(current()),))
            thread.start()
            thread.join()
    assert seen == [NO_SPAN, outer]


async def test_tasks_have_their_own(kept):
    async def work(name: str) -> None:
        with span(name):
            await asyncio.sleep(0)
            with span(f"{name} below"):
                await asyncio.sleep(0)

    with span("outer", begins=True):
        await asyncio.gather(work("a"), work("b"))
    for name in ("a", "b"):
        assert kept[name].parent_id == kept["outer"].context.span_id
        assert kept[f"{name} below"].parent_id == kept[name].context.span_id
