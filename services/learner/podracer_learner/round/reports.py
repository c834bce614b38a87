"""The reports of a round: messages to the orchestrator, metrics and spans."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.errors import MOST_LETTERS, DataCorrupted, PodracerError, UserCodeFailed, plain
from podracer_core.training.session import Progress, TrainingSession
from podracer_core.training.snapshots import Judgement
from podracer_core.training.source import RolloutSource, WorldBreak
from podracer_learner.checkpoints import base_env_steps
from podracer_learner.lease.held_lease import HeldLease
from podracer_learner.round.access import LearnerStatus
from podracer_platform.messages.sections import seconds_to_duration
from podracer_platform.messages.training import break_to_message, result_to_message
from podracer_platform.telemetry import metrics
from podracer_platform.telemetry.spans import Span, span

if TYPE_CHECKING:
    from podracer_learner.round.setup import RoundSetup


logger = logging.getLogger(__name__)

_PACE_REPORTS = 16  # about the last five seconds
_PURPOSES = {
    "progress": agent_pb2.EVALUATION_PURPOSE_PROGRESS,
    "candidate": agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
}


def problem_message(error: PodracerError, detail: str = "") -> cohort_pb2.Problem:
    """An error as a message: with the traceback of a user's code, or the key of a bad object."""
    if isinstance(error, UserCodeFailed):
        detail = error.user_traceback
    subject = error.metadata.get("file", "") if isinstance(error, DataCorrupted) else ""
    return cohort_pb2.Problem(
        reason=error.reason,
        message=error.message[:MOST_LETTERS],
        detail=plain(detail)[-MOST_LETTERS:],
        subject=subject,
    )


def evaluation_message(
    judgement: Judgement, evaluation_id: str, agent: str, base_env_steps: int
) -> agent_pb2.Evaluation:
    """A judgement; `base_env_steps` are the lineage's before this round."""
    message = result_to_message(judgement.result)
    message.evaluation_id, message.agent = evaluation_id, agent
    message.policy_version = judgement.version
    message.purpose = _PURPOSES[judgement.purpose]
    message.env_steps = base_env_steps + judgement.env_steps
    message.train_time.CopyFrom(seconds_to_duration(judgement.train_time_s))
    message.confirm_time.CopyFrom(seconds_to_duration(judgement.confirm_time_s))
    message.duration.CopyFrom(seconds_to_duration(judgement.duration_s))
    message.create_time.GetCurrentTime()
    return message


def member_progress(
    agent: str, env_steps: int, used_s: float, evaluation_s: float, members: int, failed: bool
) -> pod_service_pb2.MemberProgress:
    """A member's counted progress: steps and cost since the lease began."""
    return pod_service_pb2.MemberProgress(
        agent=agent,
        env_steps=env_steps,
        cost=seconds_to_duration(used_s / members),
        evaluation_cost=seconds_to_duration(min(evaluation_s, used_s) / members),
        failed=failed,
    )


def progress_report(
    agents: Sequence[str], progress: Progress, env_steps_per_second: float
) -> pod_service_pb2.RenewLeaseRequest:
    """The live figures of all members, for a renewal."""
    report = pod_service_pb2.RenewLeaseRequest(
        env_steps_per_second=env_steps_per_second,
        train_time=seconds_to_duration(progress.elapsed_s),
    )
    for index, agent in enumerate(agents):
        member = member_progress(
            agent,
            progress.env_steps[index],
            progress.used_s,
            progress.evaluation_s,
            len(agents),
            failed=not progress.active[index],
        )
        if math.isfinite(progress.returns[index]):
            member.training_return = progress.returns[index]
        member.metrics.update(
            {
                name: values[index]
                for name, values in progress.metrics.items()
                if math.isfinite(float(values[index]))
            }
        )
        report.members.append(member)
    return report


def work_span(lease: pod_service_pb2.Lease) -> Span:
    """The span of a lease's work, below the one that granted it."""
    kind = lease.WhichOneof("work") or ""
    own = span(kind, lease.traceparent, job=lease.job, lease=lease.name, fence=lease.fence)
    if kind in ("train", "follow"):
        work = lease.follow.train if kind == "follow" else lease.train
        own.set(algorithm=work.cohort.algorithm, members=len(work.cohort.members))
    return own


class RoundMeter:
    """Adds a round's progress since the last call to the metrics."""

    def __init__(
        self, session: TrainingSession, algorithm: Algorithm, source: RolloutSource
    ) -> None:
        self._session, self._algorithm, self._source = session, algorithm, source
        self._name = algorithm.cohort.algorithm
        self._steps = self._updates = 0
        self._seconds: dict[str, float] = {}

    def count(self, progress: Progress) -> None:
        """Count the round's progress up to now."""
        if not metrics.are_wanted():
            return
        steps, seconds = sum(progress.env_steps), self._session.phases.seconds
        metrics.STEPS.add(max(0, steps - self._steps), algorithm=self._name)
        metrics.UPDATES.add(progress.updates - self._updates, algorithm=self._name)
        for phase, total_s in seconds.items():
            metrics.PHASES.add(
                total_s - self._seconds.get(phase, 0.0), phase=phase, algorithm=self._name
            )
        metrics.STALENESS.set(self._source.staleness)
        metrics.WORKERS.set(self._source.worker_count)
        metrics.REPLAY.set(self._algorithm.replay_size)
        self._steps, self._updates, self._seconds = steps, progress.updates, dict(seconds)


class RoundReports:
    """Reports a TRAIN lease's progress and evaluations to its renewals, and its progress to the
    learner's status."""

    def __init__(
        self, held: HeldLease, setup: RoundSetup, session: TrainingSession, status: LearnerStatus
    ) -> None:
        self._held, self._setup, self._session, self._status = held, setup, session, status
        self._members = list(held.lease.train.cohort.members)
        self._meter = RoundMeter(session, setup.algorithm, setup.source)
        self._evaluation_ids = itertools.count(1)
        self._judged: list[tuple[Judgement, agent_pb2.Evaluation]] = []  # of snapshots
        self._reported_at = time.monotonic()
        self._pace = deque([(session.elapsed_s, 0)], maxlen=_PACE_REPORTS)  # seconds and steps
        self._breaks: dict[bool, WorldBreak] = {}
        self.all_failed = False

    def report(self, interval_s: float = 0.0) -> None:
        """Send the round's progress with the next renewal, at most once per `interval_s`."""
        now = time.monotonic()
        if now - self._reported_at < interval_s:
            return
        progress = self._session.progress()
        self._pace.append((progress.elapsed_s, sum(progress.env_steps)))
        (began_s, began_steps), (now_s, now_steps) = self._pace[0], self._pace[-1]
        per_second = (now_steps - began_steps) / (now_s - began_s) if now_s > began_s else 0.0
        agents = [agent.name for agent in self._members]
        report = progress_report(agents, progress, per_second)
        report.breaks.extend(self.breaks())
        self._held.renewal.report(report)
        self._status.training(self._held.lease, progress, per_second, self._setup)
        self._meter.count(progress)
        self.all_failed = not any(progress.active)
        self._reported_at = now

    def breaks(self) -> list[agent_pb2.WorldBreak]:
        """The first break of each kind since the round began."""
        for each in self._setup.source.take_breaks():
            self._breaks.setdefault(each.numbers, each)
        return [break_to_message(each) for each in self._breaks.values()]

    def deliver(self) -> None:
        """Hand new evaluations to the renewal."""
        selection = self._session.selection
        if selection is None or not (news := selection.take_news()):
            return
        messages = []
        for judgement in news:
            agent = self._members[judgement.member]
            evaluation_id = f"{self._held.lease.fence}-{next(self._evaluation_ids)}"
            message = evaluation_message(
                judgement, evaluation_id, agent.name, base_env_steps(agent)
            )
            messages.append(message)
            logger.debug(
                "%s of %s: %.1f at %.2f s, known at %.2f s",
                judgement.purpose,
                agent.name,
                judgement.result.mean,
                judgement.train_time_s,
                judgement.confirm_time_s,
            )
            if judgement.snapshot is not None:
                self._judged.append((judgement, message))
        kept = [*selection.kept, selection.confirmed]
        # others hold snapshots
        self._judged = [pair for pair in self._judged if any(pair[0] is one for one in kept)]
        self._held.renewal.add_evaluations(messages)

    def message_of(self, candidate: Judgement) -> agent_pb2.Evaluation:
        """The delivered evaluation of a kept snapshot."""
        return next(message for judged, message in self._judged if judged is candidate)
