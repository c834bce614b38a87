"""Spans and metrics of this process, as they were finished and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from podracer_platform.telemetry import metrics
from podracer_platform.telemetry.instruments import Metric
from podracer_platform.telemetry.spans import FinishedSpan, SpanSink, record_spans


class KeptSpans(SpanSink):
    """In the order in which they ended; by name, where there is one of that name."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def add(self, finished: FinishedSpan) -> None:
        self.spans.append(finished)

    def __getitem__(self, name: str) -> FinishedSpan:
        (found,) = [one for one in self.spans if one.name == name]
        return found


@contextmanager
def kept_spans() -> Iterator[KeptSpans]:
    """Spans are recorded meanwhile."""
    kept = KeptSpans()
    record_spans([kept])
    try:
        yield kept
    finally:
        record_spans([])


class CountedMetrics:
    """What has been counted."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self, metric: Metric) -> list[Any]:
        """OpenTelemetry's data points of a metric."""
        data = self._reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics[0].scope_metrics
        every = [one for scope in found for one in scope.metrics if one.name == metric.name]
        return [point for one in every for point in one.data.data_points]

    def counts(self, metric: Metric) -> dict[tuple[str, ...], int]:
        """How many values of a histogram there were, by its labels' values in the order of the
        table."""
        return {
            tuple(point.attributes[label] for label in metric.labels): point.count
            for point in self.points(metric)
        }


@contextmanager
def counted_metrics() -> Iterator[CountedMetrics]:
    """Metrics are counted meanwhile."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.attach(provider.get_meter("test"))
    try:
        yield CountedMetrics(reader)
    finally:
        metrics.detach()
        provider.shutdown()
