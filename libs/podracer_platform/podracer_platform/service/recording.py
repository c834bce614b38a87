"""The telemetry of one process, according to its settings; off by default."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podracer_core.errors import InvalidInput
from podracer_platform.service.build import own_build
from podracer_platform.telemetry import Reading, SpanFiles, SpanSink, metrics, record_spans

logger = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNAL_ENDPOINT = "OTEL_EXPORTER_OTLP_{}_ENDPOINT"
_END_S = 1.0
"""How long a process that ends waits for a collector."""


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """The destinations of telemetry, besides the collector of the environment variables.

    metrics_listen  address at which Prometheus fetches metrics; empty: none
    trace_dir       folder for files of spans; None: none
    trace_bytes     the most that folder may hold
    """

    metrics_listen: str = ""
    trace_dir: Path | None = None
    trace_bytes: int = 256 << 20


@contextmanager
def telemetry(
    service: str, options: TelemetryOptions, environment: Mapping[str, str] | None = None
) -> Iterator[str | None]:
    """Send the spans and metrics of this process where `options` and the variables OTEL_* say,
    until the block ends.

    Yields the URL of the metrics for Prometheus, or nothing. Raises InvalidInput for a folder or an
    address that cannot be used, and for a protocol other than gRPC."""
    environment = os.environ if environment is None else environment
    ends: list[Callable[[float], None]] = []
    try:
        yield _start(service, options, environment, ends)
    finally:
        record_spans([])
        for end in ends:
            end(_END_S)


def _start(
    service: str,
    options: TelemetryOptions,
    environment: Mapping[str, str],
    ends: list[Callable[[float], None]],
) -> str | None:
    otlp_spans, otlp_metrics = (
        _wants_otlp(environment, signal) for signal in ("TRACES", "METRICS")
    )
    sinks: list[SpanSink] = []
    is_sampled: Callable[[str], bool] = lambda trace_id: True  # noqa: E731
    url = None
    if otlp_spans or otlp_metrics or options.metrics_listen:
        try:
            from podracer_platform.service import otlp  # late: most processes need none of it
        except ImportError as error:
            raise InvalidInput(
                "telemetry is enabled, but not installed: "
                f"pip install 'podracer-platform[telemetry]' ({error})",
                reason="NO_TELEMETRY",
            ) from error
        resource = otlp.resource_of(service, {"service.version": own_build().version})
        if otlp_metrics or options.metrics_listen:
            watch_process()
            watch_gpus()
            export = otlp.MetricExport(
                resource, otlp=otlp_metrics, prometheus_listen=options.metrics_listen
            )
            ends.append(export.close)
            url = export.address
            if url is not None:
                logger.info("metrics at %s", url)
        if otlp_spans:
            spans = otlp.OtlpSpans(resource)
            is_sampled = spans.is_sampled
            sinks.append(spans)
    if options.trace_dir is not None:
        sinks.append(SpanFiles(options.trace_dir, service, options.trace_bytes))
    ends += [sink.close for sink in sinks]
    record_spans(sinks, is_sampled)
    return url


def _wants_otlp(environment: Mapping[str, str], signal: str) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return False
    if not (environment.get(_ENDPOINT) or environment.get(_SIGNAL_ENDPOINT.format(signal))):
        return False
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environment.get(name, "grpc")) != "grpc":
            raise InvalidInput(
                f"{name} is {protocol!r}; expected grpc, or nothing", reason="INVALID_SETTING"
            )
    return True


_STATM = Path("/proc/self/statm")


def watch_process() -> None:
    """Measure the processor time and memory of this process."""
    metrics.CPU.watch(_cpu_times)
    metrics.MEMORY.watch(_memory)


def watch_gpus() -> None:
    """Measure the GPUs of this machine, if it has any and NVML is installed."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return  # no driver, so no GPU

    def utilization() -> Iterable[Reading]:
        for index, handle in enumerate(handles):
            yield pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, {"gpu": str(index)}

    def memory() -> Iterable[Reading]:
        for index, handle in enumerate(handles):
            yield pynvml.nvmlDeviceGetMemoryInfo(handle).used, {"gpu": str(index)}

    metrics.GPU_USE.watch(utilization)
    metrics.GPU_MEMORY.watch(memory)


def _cpu_times() -> Iterable[Reading]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [(used.ru_utime, {"state": "user"}), (used.ru_stime, {"state": "system"})]


def _memory() -> Iterable[Reading]:
    try:
        resident = int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most that it has ever been
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [(float(resident), {})]
