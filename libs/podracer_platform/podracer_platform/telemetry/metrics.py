"""The table of all metrics. docs/telemetry.md, the dashboards and the tests are checked against it.

No label holds a name that users choose, or one whose number grows with use: no agent, pod, job or
lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from podracer_platform.telemetry.instruments import (
    Counter,
    Gauge,
    Histogram,
    Metric,
    ObservedCounter,
    ObservedGauge,
)

if TYPE_CHECKING:
    from opentelemetry import metrics as api

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


class _Listening:
    """Whether this process exports metrics."""

    now = False


def are_wanted() -> bool:
    """Whether metrics are exported: otherwise values that only metrics need are not computed."""
    return _Listening.now


def attach(meter: api.Meter) -> None:
    """Record all metrics with this meter from now on."""
    for metric in ALL:
        metric.attach(meter)
    _Listening.now = True


def detach() -> None:
    """Stop recording metrics."""
    _Listening.now = False
    for metric in ALL:
        metric.detach()
