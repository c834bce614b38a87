"""An OpenTelemetry collector that keeps what it receives: real OTLP over real gRPC."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was exported."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    failed: bool


class Collector:
    """`endpoint` is for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []
        self._metrics: Counter[tuple[str, str]] = Counter()

    @property
    def spans(self) -> list[ReceivedSpan]:
        """Those that have come so far."""
        with self._lock:
            return list(self._spans)

    @property
    def metrics(self) -> dict[tuple[str, str], int]:
        """How often each (service, metric) has come."""
        with self._lock:
            return dict(self._metrics)

    def add_spans(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        with self._lock:
            for of_process in request.resource_spans:
                service = _attributes(of_process.resource.attributes)["service.name"]
                self._spans += [
                    _received(service, one)
                    for scope in of_process.scope_spans
                    for one in scope.spans
                ]

    def add_metrics(self, request: metrics_service_pb2.ExportMetricsServiceRequest) -> None:
        with self._lock:
            for of_process in request.resource_metrics:
                service = _attributes(of_process.resource.attributes)["service.name"]
                for scope in of_process.scope_metrics:
                    self._metrics.update((service, metric.name) for metric in scope.metrics)


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._collector.add_spans(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._collector.add_metrics(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def otlp_collector(address: str = "127.0.0.1:0") -> Iterator[Collector]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    collector = Collector(f"http://127.0.0.1:{server.add_insecure_port(address)}")
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(collector), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(collector), server)
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def _received(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
