"""Export spans and metrics to an OpenTelemetry collector by gRPC, and metrics to Prometheus.

Only this module imports the OpenTelemetry SDK, and it is imported only when one of the exports is
on."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client import CollectorRegistry, start_http_server

from podracer_core.errors import InvalidInput
from podracer_platform.rpc.address import parse_address
from podracer_platform.telemetry import metrics
from podracer_platform.telemetry.logging import redact
from podracer_platform.telemetry.spans import FinishedSpan, SpanSink

# What a collector that is away is worth: one line for each batch that is lost, none for each
# attempt.
logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)

_SCOPE = InstrumentationScope("podracer")
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


def resource_of(service: str, attributes: Mapping[str, str]) -> Resource:
    """The attributes of this process. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME add to them or
    override them."""
    own = {
        "service.name": service,
        "service.namespace": "podracer",
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        **attributes,
    }
    stated = OTELResourceDetector().detect().attributes
    return Resource({**Resource.create({"service.name": service}).attributes, **own, **stated})


class OtlpSpans(SpanSink):
    """Sends spans in batches, from its own thread; spans that an unreachable collector does not
    take are dropped."""

    def __init__(self, resource: Resource) -> None:
        """The SDK reads its settings from OTEL_EXPORTER_OTLP_*, OTEL_BSP_* and
        OTEL_TRACES_SAMPLER."""
        self._resource = resource
        self._batches = BatchSpanProcessor(OTLPSpanExporter())
        self._sampler = TracerProvider(resource=resource, shutdown_on_exit=False).sampler

    def is_sampled(self, trace_id: str) -> bool:
        """Whether a new trace is recorded."""
        found = self._sampler.should_sample(None, int(trace_id, 16), "")
        return found.decision is Decision.RECORD_AND_SAMPLE

    def add(self, finished: FinishedSpan) -> None:
        context = finished.context
        parent = (
            _context(context.trace_id, finished.parent_id, is_remote=True)
            if finished.parent_id
            else None
        )
        self._batches.on_end(
            ReadableSpan(
                finished.name,
                _context(context.trace_id, context.span_id),
                parent,
                self._resource,
                dict(finished.attributes),
                kind=_KINDS[finished.kind],
                status=Status(StatusCode.ERROR, redact(finished.error))
                if finished.error
                else Status(),
                start_time=finished.start_ns,
                end_time=finished.end_ns,
                instrumentation_scope=_SCOPE,
            )
        )

    def close(self, timeout_s: float) -> None:
        _within(timeout_s, self._batches.shutdown)


class MetricExport:
    """Exports everything in `metrics` to a collector, to Prometheus, or to both."""

    def __init__(self, resource: Resource, *, otlp: bool, prometheus_listen: str) -> None:
        """`prometheus_listen`: the address that serves metrics over HTTP; empty: none. Raises
        InvalidInput for an address that cannot be used."""
        readers: list[MetricReader] = []
        self._server: Any = None
        self.address: str | None = None
        if prometheus_listen:
            registry = CollectorRegistry()
            readers.append(PrometheusMetricReader(scope_info_enabled=False, registry=registry))
            self._server, self.address = _serve(prometheus_listen, registry)
        if otlp:
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        metrics.attach(self._provider.get_meter("podracer"))

    def close(self, timeout_s: float) -> None:
        """Export the metrics a last time, within `timeout_s`."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        _within(timeout_s, lambda: self._provider.shutdown(timeout_millis=1000 * timeout_s))
        metrics.detach()


def _serve(listen: str, registry: CollectorRegistry) -> tuple[Any, str]:
    """The server, and its URL."""
    address = parse_address(listen)
    if address.is_unix:
        raise InvalidInput(
            f"PODRACER_METRICS_LISTEN: {listen}: expected HOST:PORT", reason="INVALID_ADDRESS"
        )
    try:
        server, _ = start_http_server(address.port, address.host, registry)
    except OSError as error:
        message = (
            f"PODRACER_METRICS_LISTEN: cannot listen at {listen}: {error.strerror}; "
            "expected a free address"
        )
        raise InvalidInput(message, reason="ADDRESS_UNUSABLE", address=listen) from error
    return server, f"http://{address.with_port(server.server_port)}/metrics"


def _context(trace_id: str, span_id: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED)
    )


def _within(timeout_s: float, end: Callable[[], object]) -> None:
    """Shut down the SDK in a thread and wait at most `timeout_s`: the collector may be
    unreachable."""
    thread = threading.Thread(target=end, name="telemetry-end", daemon=True)
    thread.start()
    thread.join(timeout_s)
