"""Spans: what a process did, for how long and on whose behalf, with the ids of W3C's trace context.

Without a recorder (`record_spans`) spans do nothing, at almost no cost. A span's parent is the `current` one of this
process, or that of another process which sent its `traceparent`. Without a parent there is no span, unless it `begins`
a trace.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
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
        """None for what is no traceparent."""
        found = _FORM.fullmatch(traceparent)
        if found is None or _ZERO.fullmatch(found[1]) or _ZERO.fullmatch(found[2]):
            return None
        return cls(found[1], found[2], bool(int(found[3], 16) & 1))

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


@dataclass(frozen=True, slots=True)
class FinishedSpan:
    """A span that is over. Times are in nanoseconds since 1970; `parent_id` is empty for the first of a trace, `error`
    for one that went well."""

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
        """Keep it, or send it on. Never raises, never waits for another machine."""

    def close(self, timeout_s: float) -> None:  # noqa: B027 - some have nothing that waits
        """Bring what waits on its way, within `timeout_s`."""


class Span:
    """A span without a recorder; `span` returns recorded ones. As a context manager it is `current` until it ends.

    traceparent  for another process to go on from; empty where nothing is recorded
    context      its ids; None where nothing is recorded
    """

    traceparent: str = ""
    context: SpanContext | None = None

    def set(self, **attributes: Attribute) -> None:
        """Add to what is known about it."""

    def end(self, error: str = "") -> None:
        """It is over; for one that was not used as a context."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


NO_SPAN = Span()

_current: ContextVar[Span] = ContextVar("podracer_span", default=NO_SPAN)


@dataclass(frozen=True, slots=True)
class _Recording:
    """Where finished spans go, and which traces are recorded at all, by their id."""

    sinks: Sequence[SpanSink]
    is_sampled: Callable[[str], bool]


@dataclass(slots=True)
class _Recorder:
    """Of this process, as logging has its root: libraries and services name nothing else."""

    recording: _Recording | None = None


_recorder = _Recorder()


def record_spans(sinks: Sequence[SpanSink], is_sampled: Callable[[str], bool] = lambda trace_id: True) -> None:
    """Have spans recorded from now on; with no sinks, not any more. `is_sampled` decides about each new trace."""
    _recorder.recording = _Recording(tuple(sinks), is_sampled) if sinks else None


def are_recorded() -> bool:
    """Whether this process records spans."""
    return _recorder.recording is not None


def current() -> Span:
    """The span that this thread, or task, is in."""
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
    """A span that begins now (or has begun at `start_ns`), to be used as a context or to be ended.

    parent  a traceparent, empty for none; None: the current span
    begins  where there is no parent it is the first of a new trace
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
    return _RecordedSpan(name, kind, context, parent_id, recording.sinks, start_ns or time.time_ns(), attributes)


@dataclass(slots=True)
class _Clock:
    """Durations by a monotonic clock."""

    start_ns: int
    began_ns: int = field(default_factory=time.perf_counter_ns)

    def end_ns(self) -> int:
        return self.start_ns + time.perf_counter_ns() - self.began_ns


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
        now_ns = time.time_ns()
        self._clock = _Clock(start_ns, time.perf_counter_ns() - max(0, now_ns - start_ns))
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
            self._clock.start_ns,
            self._clock.end_ns(),
            self._attributes,
            error,
        )
        for sink in self._sinks:
            sink.add(finished)

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        self.end("" if exc is None else f"{type(exc).__name__}: {exc}"[:500])
