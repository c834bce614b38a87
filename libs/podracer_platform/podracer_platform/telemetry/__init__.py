"""Logs, spans and metrics of a service; no torch.

logging       structured logs
spans         the operations of a service, their durations and their jobs; off unless spans are
              recorded
span_files    spans in files of this machine
metrics       counters, gauges and histograms with bounded labels, and the table of all of them

podracer_platform.service.telemetry sends them where a process's settings say.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.telemetry import metrics
    from podracer_platform.telemetry.logging import (
        PrintableStream, configure_logging, printable, redact,
    )
    from podracer_platform.telemetry.metrics import (
        CANDIDATES, CHECKPOINT_SIZE, CHECKPOINT_TIME, DATABASE, DELIVERED, EPISODES, EVALUATION,
        EVALUATOR_QUEUE, FUSION, LEASES, ORDERS, OTHER, PODS_WANTED, POLICY_ACTIONS, POLICY_BATCH,
        POLICY_LOADS, POLICY_QUEUE, PROPOSALS, ROLLOUT, SPOOL, WORKER_STEPS, Counter, Gauge,
        Histogram, Metric, Reading,
    )
    from podracer_platform.telemetry.span_files import ENDING, SpanFiles
    from podracer_platform.telemetry.spans import (
        NO_SPAN, TRACEPARENT, FinishedSpan, Span, SpanContext, SpanSink, are_recorded, current,
        record_spans, span,
    )
else:
    __all__, __getattr__ = exports(__name__)
