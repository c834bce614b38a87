"""Counters, gauges and histograms with bounded labels, and the table of all of them, against which
docs/telemetry.md, the dashboards and the tests are checked.

Without an attached meter they do nothing, at almost no cost. No label holds a name that users
choose, or one whose number grows with use: no agent, pod, job or lease."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import grpc

if TYPE_CHECKING:
    from opentelemetry import metrics as api

Reading = tuple[float, Mapping[str, str]]
"""A value and its labels."""

Label = Collection[str] | int
"""The values of a label, or their maximum number if they are not known beforehand."""

OTHER = "other"
"""The value that stands for all values beyond a label's limit."""

SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""The upper bounds of the buckets of a histogram of times."""

_UNITS = {"s": "seconds", "By": "bytes"}


class Metric(ABC):
    """One metric of the table. `name` has dots, `unit` is UCUM's (`s`, `By`, `{step}`)."""

    kind: ClassVar[str]
    _instrument: Any = None

    def __init__(self, name: str, unit: str, description: str, /, **labels: Label) -> None:
        self.name, self.unit, self.description, self.labels = name, unit, description, labels
        self._lock = threading.Lock()
        self._seen: dict[str, set[str]] = {}

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus; a histogram has suffixes in addition."""
        name, unit = self.name.replace(".", "_"), _UNITS.get(self.unit, "")
        if unit and not name.endswith(f"_{unit}"):
            name += f"_{unit}"
        return name

    @property
    def prometheus_names(self) -> tuple[str, ...]:
        """The names of all its series in Prometheus."""
        return (self.prometheus_name,)

    def attach(self, meter: api.Meter) -> None:
        """Record the metric with this meter from now on."""
        self._seen = {
            label: set() for label, bound in self.labels.items() if isinstance(bound, int)
        }
        self._instrument = self._make(meter)

    def detach(self) -> None:
        """Stop recording the metric."""
        self._instrument = None

    @property
    def is_attached(self) -> bool:
        """Whether the metric is recorded."""
        return self._instrument is not None

    @abstractmethod
    def _make(self, meter: api.Meter) -> Any:
        """The instrument of the SDK."""

    def _bounded(self, values: Mapping[str, str]) -> dict[str, str]:
        """The labels, with OTHER for values beyond the limit. Raises KeyError for a label that was
        not declared."""
        return {label: self._bounded_value(label, value) for label, value in values.items()}

    def _bounded_value(self, label: str, value: str) -> str:
        bound = self.labels[label]
        if not isinstance(bound, int):
            return value if value in bound else OTHER
        seen = self._seen[label]
        if value not in seen:
            with self._lock:
                if len(seen) >= bound:
                    return OTHER
                seen.add(value)
        return value


class Counter(Metric):
    """A total that only grows."""

    kind = "counter"
    _instrument: api.Counter | None

    @property
    def prometheus_name(self) -> str:
        return f"{super().prometheus_name}_total"

    def _make(self, meter: api.Meter) -> api.Counter:
        return meter.create_counter(self.name, self.unit, self.description)

    def add(self, amount: float = 1, **labels: str) -> None:
        if self._instrument is not None:
            self._instrument.add(amount, self._bounded(labels))


class Gauge(Metric):
    """A value that goes up and down; the last one that was set."""

    kind = "gauge"
    _instrument: api._Gauge | None

    def _make(self, meter: api.Meter) -> api._Gauge:
        return meter.create_gauge(self.name, self.unit, self.description)

    def set(self, value: float, **labels: str) -> None:
        if self._instrument is not None:
            self._instrument.set(value, self._bounded(labels))


class Histogram(Metric):
    """The number of values in each bucket."""

    kind = "histogram"
    _instrument: api.Histogram | None
    bounds: Sequence[float] = SECONDS

    @property
    def prometheus_names(self) -> tuple[str, ...]:
        return tuple(f"{self.prometheus_name}_{ending}" for ending in ("bucket", "sum", "count"))

    def _make(self, meter: api.Meter) -> api.Histogram:
        return meter.create_histogram(
            self.name, self.unit, self.description, explicit_bucket_boundaries_advisory=self.bounds
        )

    def record(self, value: float, **labels: str) -> None:
        if self._instrument is not None:
            self._instrument.record(value, self._bounded(labels))

    def timed(self, **labels: str) -> AbstractContextManager[object]:
        """Record the duration of the block in seconds."""
        return nullcontext() if self._instrument is None else self._timed(labels)

    @contextmanager
    def _timed(self, labels: Mapping[str, str]) -> Iterator[None]:
        began_at = time.perf_counter()
        try:
            yield
        finally:
            self.record(time.perf_counter() - began_at, **labels)


class _Observed(Metric):
    """A metric that is read on each export."""

    _read: Callable[[], Iterable[Reading]] | None = None

    def watch(self, read: Callable[[], Iterable[Reading]]) -> None:
        """`read` returns the current readings. It is called in its own thread and must not
        block."""
        self._read = read

    def _observe(self, options: api.CallbackOptions) -> Iterable[api.Observation]:
        from opentelemetry.metrics import Observation

        found = self._read() if self._read is not None else ()
        return [Observation(value, self._bounded(labels)) for value, labels in found]


class ObservedCounter(_Observed):
    """A total that only grows."""

    kind = "counter"

    @property
    def prometheus_name(self) -> str:
        return f"{super().prometheus_name}_total"

    def _make(self, meter: api.Meter) -> api.ObservableCounter:
        return meter.create_observable_counter(
            self.name, [self._observe], self.unit, self.description
        )


class ObservedGauge(_Observed):
    """A value that goes up and down."""

    kind = "gauge"

    def _make(self, meter: api.Meter) -> api.ObservableGauge:
        return meter.create_observable_gauge(
            self.name, [self._observe], self.unit, self.description
        )


_CODES = tuple(code.name for code in grpc.StatusCode)
_METHODS = 100
_ALGORITHMS = 40
_WORKS = ("inspect", "train", "evaluate", "follow")
_PURPOSES = ("progress", "candidate", "challenge", "requested")

# Every process
RPC_SERVER = Histogram(
    "podracer.rpc.server.duration",
    "s",
    "Calls answered; a stream counts when it ends",
    method=_METHODS,
    code=_CODES,
)
RPC_CLIENT = Histogram(
    "podracer.rpc.client.duration", "s", "Unary calls made", method=_METHODS, code=_CODES
)
CPU = ObservedCounter(
    "process.cpu.time", "s", "Processor time of the process", state=("user", "system")
)
MEMORY = ObservedGauge("process.memory.usage", "By", "Resident memory of the process")
GPU_USE = ObservedGauge(
    "podracer.gpu.utilization",
    "{share}",
    "Share of the last second in which the GPU computed",
    gpu=16,
)
GPU_MEMORY = ObservedGauge(
    "podracer.gpu.memory.usage", "By", "Memory of the GPU that is taken, by anybody", gpu=16
)

# Orchestrator and leaderboard
DATABASE = Histogram(
    "podracer.database.duration",
    "s",
    "Transactions, the wait for their turn included",
    operation=("read", "write"),
)

# Orchestrator
JOBS = Gauge("podracer.jobs", "{job}", "Jobs by state", state=12)
PODS = Gauge("podracer.pods", "{pod}", "Pods by state, without those that are gone", state=12)
PODS_WANTED = Gauge("podracer.pods.wanted", "{pod}", "Pods that the pool is to have")
LEASES = Counter(
    "podracer.leases",
    "{lease}",
    "What became of leases",
    event=("granted", "renewed", "completed", "released", "expired"),
)
LEASES_HELD = Gauge("podracer.leases.held", "{lease}", "Leases held now")
LEASE_WAITS = Gauge("podracer.leases.waiting", "{call}", "Pods that wait for work")
OUTBOX = Gauge("podracer.outbox.size", "{row}", "What the leaderboard has not heard yet")
DELIVERED = Counter(
    "podracer.outbox.delivered",
    "{row}",
    "What the leaderboard was told",
    method=8,
    result=("taken", "refused"),
)

# Leaderboard
PROPOSALS = Counter(
    "podracer.proposals",
    "{agent}",
    "Agents proposed to pods",
    action=("continue", "exploit", "fresh"),
)
CANDIDATES = Counter(
    "podracer.candidates", "{candidate}", "Rounds that were reported", admitted=("yes", "no")
)

# Learner
STEPS = Counter("podracer.steps", "{step}", "Environment steps trained on", algorithm=_ALGORITHMS)
UPDATES = Counter("podracer.updates", "{update}", "Updates of a cohort", algorithm=_ALGORITHMS)
PHASES = Counter(
    "podracer.phase.time",
    "s",
    "Time of rounds by phase",
    phase=("collect", "update", "fuse", "evaluate", "report", "conclude"),
    algorithm=_ALGORITHMS,
)
STALENESS = Gauge(
    "podracer.staleness", "{version}", "Updates by which the last rollout was behind, its mean"
)
WORKERS = Gauge("podracer.workers", "{worker}", "Workers that collect for this learner")
REPLAY = Gauge(
    "podracer.replay.size", "{transition}", "Transitions in replay memory, of all members"
)
FUSION = Histogram(
    "podracer.fusion.duration", "s", "Fusions with other learners, the wait for them included"
)
ORDERS = Gauge("podracer.evaluation.waiting", "{order}", "Evaluations that the learner waits for")
WORKS = Counter(
    "podracer.works",
    "{work}",
    "Works by how they ended",
    kind=_WORKS,
    result=("done", "handed_back", "lost", "failed"),
)
CHECKPOINT_SIZE = Counter("podracer.checkpoint.size", "By", "Checkpoints written")
CHECKPOINT_TIME = Histogram(
    "podracer.checkpoint.duration", "s", "Checkpoints of a cohort written, until they last"
)
SPOOL = Gauge("podracer.spool.size", "By", "Checkpoints on their way to the object store")

# Worker
WORKER_STEPS = Counter("podracer.worker.steps", "{step}", "Environment steps collected")
ROLLOUT = Histogram("podracer.worker.rollout.duration", "s", "Rollouts collected")

# Evaluator
EPISODES = Counter("podracer.evaluator.episodes", "{episode}", "Episodes played", purpose=_PURPOSES)
EVALUATION = Histogram("podracer.evaluator.duration", "s", "Orders evaluated", purpose=_PURPOSES)
EVALUATOR_QUEUE = Gauge("podracer.evaluator.queue", "{order}", "Orders that wait")

# Policy server
POLICY_ACTIONS = Counter("podracer.policy.actions", "{action}", "Actions of served policies")
POLICY_BATCH = Histogram(
    "podracer.policy.batch.duration",
    "s",
    "Calls of a served policy's network, of many requests each",
)
POLICY_QUEUE = Gauge(
    "podracer.policy.queue", "{observation}", "Observations that wait for a policy"
)
POLICY_LOADS = Counter(
    "podracer.policy.loads", "{policy}", "Policies put in or exchanged", result=("done", "failed")
)

ALL: tuple[Metric, ...] = tuple(
    value for value in list(vars().values()) if isinstance(value, Metric)
)


def are_wanted() -> bool:
    """Whether metrics are exported: otherwise values that only metrics need are not computed."""
    return RPC_SERVER.is_attached


def attach(meter: api.Meter) -> None:
    """Record all metrics with this meter from now on."""
    for metric in ALL:
        metric.attach(meter)


def detach() -> None:
    """Stop recording metrics."""
    for metric in ALL:
        metric.detach()
