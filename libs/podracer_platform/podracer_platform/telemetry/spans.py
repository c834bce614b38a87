"""Spans: the operations of a process, their durations and their callers, with the ids of W3C's
trace context.

Without a recorder (`record_spans`) spans do nothing, at almost no cost. The parent of a span is the
`current` span of this process, or the span of another process that sent its `traceparent`. Without
a parent no span is recorded, unless it `begins` a trace."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

TRACEPARENT = "traceparent"
"""The metadata that carries a span to another process."""

Attribute = str | int | float | bool
Kind = Literal["internal", "server", "client"]

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ZERO = re.compile("0+")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The ids of a span and of its trace, and whether the trace is recorded."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str) -> SpanContext | None:
        """The context in a traceparent; None if the text is not one."""
        found = _FORM.fullmatch(traceparent)
        if found is None or _ZERO.fullmatch(found[1]) or _ZERO.fullmatch(found[2]):
            return None
        return cls(found[1], found[2], bool(int(found[3], 16) & 1))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """A finished span. Times are in nanoseconds since 1970. `parent_id` is empty for the first span
    of a trace, `error` for a successful one."""

    name: str
    kind: Kind
    context: SpanContext
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    error: str = ""

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class SpanSink(ABC):
    """Takes finished spans, in any thread."""

    @abstractmethod
    def add(self, finished: FinishedSpan) -> None:
        """Keep or send the span. Never raises, never waits for another machine."""

    def close(self, timeout_s: float) -> None:  # noqa: B027 - some have nothing that waits
        """Send the waiting spans, within `timeout_s`."""


class Span:
    """A span that is not recorded; `span` returns recorded ones. As a context manager it is
    `current` until it ends.

    traceparent  for another process that continues the trace; empty for a span that is not recorded
    context      its ids; None for a span that is not recorded
    """

    traceparent: str = ""
    context: SpanContext | None = None

    def set(self, **attributes: Attribute) -> None:
        """Add attributes to the span."""

    def end(self, error: str = "") -> None:
        """End a span that is not used as a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


NO_SPAN = Span()

_current: ContextVar[Span] = ContextVar("podracer_span", default=NO_SPAN)


@dataclass(frozen=True, slots=True)
class _Recording:
    """The sinks of finished spans, and the rule which new traces are recorded."""

    sinks: Sequence[SpanSink]
    is_sampled: Callable[[str], bool]


@dataclass(slots=True)
class _Recorder:
    """The only recorder of this process, like the root logger of logging."""

    recording: _Recording | None = None


_recorder = _Recorder()


def record_spans(
    sinks: Sequence[SpanSink], is_sampled: Callable[[str], bool] = lambda trace_id: True
) -> None:
    """Record spans in these sinks from now on; without sinks, stop. `is_sampled` decides for each
    new trace."""
    _recorder.recording = _Recording(tuple(sinks), is_sampled) if sinks else None


def are_recorded() -> bool:
    """Whether this process records spans."""
    return _recorder.recording is not None


def current() -> Span:
    """The current span of this thread or task."""
    return _current.get()


def span(
    name: str,
    parent: str | None = None,
    *,
    kind: Kind = "internal",
    begins: bool = False,
    start_ns: int | None = None,
    **attributes: Attribute,
) -> Span:
    """Begin a span now (or at `start_ns`). Use it as a context manager, or call `end`.

    parent  a traceparent, empty for none; None: the current span
    begins  without a parent, begin a new trace
    """
    recording = _recorder.recording
    if recording is None:
        return NO_SPAN
    origin = _current.get().context if parent is None else SpanContext.parse(parent)
    if origin is not None:
        if not origin.sampled:
            return NO_SPAN
        context, parent_id = SpanContext(origin.trace_id, os.urandom(8).hex()), origin.span_id
    elif begins and recording.is_sampled(trace_id := os.urandom(16).hex()):
        context, parent_id = SpanContext(trace_id, os.urandom(8).hex()), ""
    else:
        return NO_SPAN
    return _RecordedSpan(
        name, kind, context, parent_id, recording.sinks, start_ns or time.time_ns(), attributes
    )


class _RecordedSpan(Span):
    def __init__(
        self,
        name: str,
        kind: Kind,
        context: SpanContext,
        parent_id: str,
        sinks: Sequence[SpanSink],
        start_ns: int,
        attributes: dict[str, Attribute],
    ) -> None:
        self.context, self.traceparent = context, context.traceparent
        self._name, self._kind, self._parent_id, self._sinks = name, kind, parent_id, sinks
        self._start_ns = start_ns
        self._began_ns = time.perf_counter_ns() - max(0, time.time_ns() - start_ns)  # monotonic
        self._attributes = attributes
        self._token: Token[Span] | None = None
        self._ended = False

    def set(self, **attributes: Attribute) -> None:
        self._attributes.update(attributes)

    def end(self, error: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        assert self.context is not None, "a recorded span has its ids"
        finished = FinishedSpan(
            self._name,
            self._kind,
            self.context,
            self._parent_id,
            self._start_ns,
            self._start_ns + time.perf_counter_ns() - self._began_ns,
            self._attributes,
            error,
        )
        for sink in self._sinks:
            sink.add(finished)

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        self.end("" if exc is None else f"{type(exc).__name__}: {exc}"[:500])
