"""Metrics of calls (number, duration, status), and spans of calls that belong to a trace.

A unary call within a span is a span itself, and sends its `traceparent`; the server's span of the
call is its child. Streams live long, so they have no spans; the work on them has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from podracer_core.errors import PodracerError
from podracer_platform.rpc.status import code_of
from podracer_platform.telemetry import metrics
from podracer_platform.telemetry.spans import (
    NO_SPAN,
    TRACEPARENT,
    Span,
    are_recorded,
    current,
    span,
)

BEGIN_TRACES = frozenset({"/podracer.orchestrator.v1.JobService/CreateJob"})
"""Calls that begin a trace if the client has none: all work for a job belongs to the trace of its
creation."""

Metadata = Iterable[tuple[str, str | bytes]]


@contextmanager
def observed_server_call(method: str, metadata: Metadata, *, is_stream: bool) -> Iterator[None]:
    """Observe a call's handler; used inside the mapping of errors."""
    if not (metrics.are_wanted() or are_recorded()):
        yield
        return
    began_at, code = time.perf_counter(), grpc.StatusCode.OK
    try:
        with NO_SPAN if is_stream else _server_span(method, metadata) as own:
            try:
                yield
            except PodracerError as error:
                code = code_of(error)
                raise
            except Exception:
                code = grpc.StatusCode.INTERNAL
                raise
            except BaseException:
                # the task was cancelled, or the generator closed: the caller has gone
                code = grpc.StatusCode.CANCELLED
                raise
            finally:
                own.set(code=code.name)
    finally:
        metrics.RPC_SERVER.record(
            time.perf_counter() - began_at, method=_short(method), code=code.name
        )


class ClientCall:
    """One unary call, from its beginning to `end`."""

    def __init__(self, method: str | bytes) -> None:
        self._method = _short(method if isinstance(method, str) else method.decode())
        self._span = NO_SPAN if current() is NO_SPAN else span(self._method, kind="client")
        self._began_at = time.perf_counter()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata with the span of the call."""
        return ((TRACEPARENT, self._span.traceparent),) if self._span.traceparent else ()

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        """The call is over, successful or not."""
        self._span.set(code=code.name)
        self._span.end("" if code is grpc.StatusCode.OK else code.name)
        metrics.RPC_CLIENT.record(
            time.perf_counter() - self._began_at, method=self._method, code=code.name
        )

    def end_with(self, outcome: Any) -> None:
        """The call is over when the outcome of a blocking or started call is."""
        outcome.add_done_callback(lambda ended: self.end(ended.code()))


def _server_span(method: str, metadata: Metadata) -> Span:
    parent = next(
        (value for key, value in metadata if key == TRACEPARENT and isinstance(value, str)), ""
    )
    return span(_short(method), parent, kind="server", begins=method in BEGIN_TRACES)


def _short(method: str) -> str:
    """`/podracer.worker.v1.WorkerService/Collect` -> `WorkerService/Collect`."""
    return method.rpartition(".")[2].lstrip("/")
