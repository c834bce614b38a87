"""What a learner tells of its work: spans, and metrics of how far it has come."""

from __future__ import annotations

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.telemetry import metrics
from podracer_core.telemetry.spans import Span, span
from podracer_core.training.session import Progress, TrainingSession
from podracer_core.training.source import RolloutSource

__all__ = ["RoundMeter", "work_span"]


def work_span(lease: pod_service_pb2.Lease) -> Span:
    """The span of a lease's work, below the one that granted it."""
    kind = lease.WhichOneof("work") or ""
    own = span(kind, lease.traceparent, job=lease.job, lease=lease.name, fence=lease.fence)
    if kind in ("train", "follow"):
        work = lease.follow.train if kind == "follow" else lease.train
        own.set(algorithm=work.cohort.algorithm, members=len(work.cohort.members))
    return own


class RoundMeter:
    """Counts what a round has done since it was last asked."""

    def __init__(self, session: TrainingSession, algorithm: Algorithm, source: RolloutSource) -> None:
        self._session, self._algorithm, self._source = session, algorithm, source
        self._name = algorithm.cohort.algorithm
        self._steps = self._updates = 0
        self._seconds: dict[str, float] = {}

    def count(self, progress: Progress) -> None:
        """Where the round stands now."""
        if not metrics.are_wanted():
            return
        steps, seconds = sum(progress.env_steps), self._session.phases.seconds
        metrics.STEPS.add(max(0, steps - self._steps), algorithm=self._name)
        metrics.UPDATES.add(progress.updates - self._updates, algorithm=self._name)
        for phase, total_s in seconds.items():
            metrics.PHASES.add(total_s - self._seconds.get(phase, 0.0), phase=phase, algorithm=self._name)
        metrics.STALENESS.set(self._source.staleness)
        metrics.WORKERS.set(self._source.worker_count)
        metrics.REPLAY.set(self._algorithm.replay_size)
        self._steps, self._updates, self._seconds = steps, progress.updates, dict(seconds)
