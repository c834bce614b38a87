"""The results of a round: members' checkpoints, written and committed, and reports: messages to the
orchestrator, metrics and spans."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms import Algorithm
from podracer_core.errors import (
    MOST_LETTERS,
    DataCorrupted,
    DeadlineExpired,
    Exhausted,
    PodracerError,
    Unavailable,
    UserCodeFailed,
    plain,
)
from podracer_core.sections import CHECKPOINT_INTERVAL_S
from podracer_core.training import (
    Judgement,
    MemberOutcome,
    Progress,
    RolloutSource,
    TrainingSession,
    WorldBreak,
)
from podracer_learner.checkpoints import CheckpointWriter, MemberWrite, base_env_steps
from podracer_learner.lease import CommitCall, HeldLease
from podracer_learner.round.access import LearnerStatus
from podracer_learner.round.setup import StoredReplays
from podracer_platform.messages import seconds_from_duration, seconds_to_duration
from podracer_platform.rpc import Backoff, translated_errors
from podracer_platform.telemetry import Span, metrics, span
from podracer_platform.training_messages import break_to_message, result_to_message

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


_POLL_S = 0.1
_RETRY_S = (0.5, 10.0)
HURRY_S = 10.0


class StoreAway(Unavailable):
    """The object store has accepted no write within the patience."""

    reason = "STORE_AWAY"


class CheckpointCommitter:
    """Writes members' checkpoints, each once, and commits them as soon as they are in the store: at
    once in a folder, else in the background of training.

    furthest_steps   the most steps of a member in a checkpoint of this lease; -1 before the first
    """

    def __init__(
        self,
        held: HeldLease,
        writer: CheckpointWriter,
        replays: StoredReplays,
        session: TrainingSession,
        patience_s: float,
        interrupted: Callable[[], bool],
    ) -> None:
        """`replays`: the members' transitions. `patience_s`: how long to wait for the store if it
        is required; a round that is `interrupted` waits for less."""
        self._held, self._writer, self._replays, self._session = held, writer, replays, session
        self._patience_s, self._interrupted = patience_s, interrupted
        self._agents = [agent.name for agent in held.lease.train.cohort.members]
        self._interval_s = (
            seconds_from_duration(held.lease.train.checkpoint_interval) or CHECKPOINT_INTERVAL_S
        )
        # by member and steps
        self._written: dict[tuple[int, int], agent_pb2.CheckpointReference] = {}
        self._under_way: list[pod_service_pb2.MemberCheckpoint] = []
        self._committed_steps: dict[str, int] = {}
        self._tried_at = time.monotonic()
        self._call: CommitCall | None = None  # that commits what is under way
        self._waits, self._again_at = Backoff(*_RETRY_S), 0.0
        self.furthest_steps = -1

    @property
    def is_due(self) -> bool:
        """Whether the last commit or attempt is long enough ago; never while one is in progress."""
        return not self._under_way and time.monotonic() - self._tried_at >= self._interval_s

    def written(self, member: int, env_steps: int) -> agent_pb2.CheckpointReference:
        """The written checkpoint of a member at `env_steps` of this lease."""
        return self._written[member, env_steps]

    def member_checkpoint(self, outcome: MemberOutcome) -> pod_service_pb2.MemberCheckpoint:
        """The checkpoint of a written outcome."""
        return self._member_checkpoint(outcome.member, outcome.env_steps, failed=outcome.failed)

    def commit_now(
        self, members: Sequence[int], patience_s: float = math.inf
    ) -> list[agent_pb2.CheckpointReference]:
        """Write and commit these members as they are. Raises StoreAway after its own patience, or
        this."""
        everybody = self._session.outcomes()
        outcomes = [everybody[member] for member in dict.fromkeys(members)]
        self._write_lasting([self._final(outcome) for outcome in outcomes], patience_s)
        written = [self.member_checkpoint(outcome) for outcome in outcomes]
        self._commit(written)
        return [one.checkpoint for one in written]

    def commit_behind(self) -> None:
        """Write all members if it is time; training continues while they are stored and
        committed."""
        if self.is_due:
            outcomes = self._session.outcomes()
            if self._try_write([self._final(outcome) for outcome in outcomes]):
                self._under_way = [self.member_checkpoint(outcome) for outcome in outcomes]
        self.go_on()

    def commit_winner(self, confirmed: Judgement) -> None:
        """Commit the snapshot that reached the target, unless a later one of its member is
        committed."""
        self._write_lasting([self._candidate(confirmed, self._session.outcomes())])
        member, env_steps = confirmed.member, confirmed.env_steps
        if env_steps > self._committed_steps.get(self._agents[member], -1):
            self._commit([self._member_checkpoint(member, env_steps, failed=False)])

    def write_last(self, outcomes: Sequence[MemberOutcome]) -> None:
        """Write the checkpoints of the result: every member's last state, and its candidate. If
        these are the same, one checkpoint with the evaluation is both."""
        writes = [
            self._candidate(one.candidate, outcomes)
            for one in outcomes
            if one.candidate is not None
        ]
        writes += [self._final(outcome) for outcome in outcomes]
        self._write_lasting(
            list({(write.member, write.env_steps): write for write in reversed(writes)}.values())
        )

    def go_on(self) -> None:
        """Commit written checkpoints once the store has them; retry while the orchestrator does not
        answer."""
        if self._call is not None:
            if self._call.done():
                self._end_call(self._call)
        elif self._under_way and time.monotonic() >= self._again_at and self._held.store.settle():
            self._call = self._held.control.begin_commit(self._under_way)

    def _try_write(self, writes: Sequence[MemberWrite]) -> bool:
        """Write without waiting for the store; False, with a warning, if that is impossible now."""
        try:
            self._write(writes)
        except (Unavailable, Exhausted) as error:
            logger.warning("cannot write a checkpoint now: %s", error.message)
            self._tried_at = time.monotonic()
            return False
        return True

    def _write_lasting(self, writes: Sequence[MemberWrite], patience_s: float = math.inf) -> None:
        """Write, wait until everything is in the store, and commit."""

        def has_written() -> bool:
            try:
                self._write(writes)
            except (Unavailable, Exhausted) as error:
                logger.info("waiting to write a checkpoint: %s", error.message)
                return False
            return True

        self._wait_until(has_written, patience_s)
        self._wait_until(lambda: self._held.store.settle(_POLL_S), patience_s)
        self._commit_begun()

    def _commit(self, members: list[pod_service_pb2.MemberCheckpoint]) -> None:
        """Commit them; they are in the store."""
        self._held.control.commit(members)
        self._note_committed(members)

    def _note_committed(self, members: Sequence[pod_service_pb2.MemberCheckpoint]) -> None:
        self._writer.committed([one.checkpoint for one in members])
        self._committed_steps |= {one.progress.agent: one.progress.env_steps for one in members}
        self._tried_at = time.monotonic()

    def _write(self, writes: Sequence[MemberWrite]) -> None:
        def note(write: MemberWrite, reference: agent_pb2.CheckpointReference) -> None:
            self._written[write.member, write.env_steps] = reference

        self._writer.write(
            [one for one in writes if (one.member, one.env_steps) not in self._written], note
        )
        self.furthest_steps = max([self.furthest_steps, *(write.env_steps for write in writes)])

    def _end_call(self, call: CommitCall) -> None:
        """Wait for the answer."""
        self._call = None
        try:
            with translated_errors(method="CommitCheckpoint"):
                call.result()
        except (Unavailable, DeadlineExpired) as error:
            logger.info("waiting to commit, no answer from the orchestrator: %s", error.message)
            self._again_at = time.monotonic() + next(self._waits)
            return
        self._waits.reset()
        self._note_committed(self._under_way)
        self._under_way = []

    def _commit_begun(self) -> None:
        if self._call is not None:
            self._end_call(self._call)
        if self._under_way:
            self._commit(self._under_way)
            self._under_way = []

    def _wait_until(self, ready: Callable[[], bool], most_s: float) -> None:
        began_at = time.monotonic()
        while not ready():
            self._held.guard.check()
            patience_s = min(self._patience_s, most_s, HURRY_S if self._interrupted() else math.inf)
            if time.monotonic() - began_at > patience_s:
                raise StoreAway(
                    f"{self._held.store.url} has accepted no write for {patience_s:.0f} s"
                )
            time.sleep(_POLL_S)

    def _final(self, outcome: MemberOutcome) -> MemberWrite:
        replay = self._replays.of(outcome.member)
        return MemberWrite(
            outcome.member, outcome.env_steps, outcome.state, outcome.environment, replay=replay
        )

    def _candidate(self, judgement: Judgement, outcomes: Sequence[MemberOutcome]) -> MemberWrite:
        snapshot, outcome = judgement.snapshot, outcomes[judgement.member]
        assert snapshot is not None, "a candidate is judged by its snapshot"
        environment = outcome.environment if outcome.env_steps == judgement.env_steps else None
        replay = self._replays.of(judgement.member)
        return MemberWrite(
            judgement.member,
            judgement.env_steps,
            snapshot.state,
            environment,
            judgement.result,
            replay,
        )

    def _member_checkpoint(
        self, member: int, env_steps: int, *, failed: bool
    ) -> pod_service_pb2.MemberCheckpoint:
        now = self._session.progress()
        progress = member_progress(
            self._agents[member], env_steps, now.used_s, now.evaluation_s, len(self._agents), failed
        )
        if math.isfinite(now.returns[member]):
            progress.training_return = now.returns[member]
        return pod_service_pb2.MemberCheckpoint(
            progress=progress, checkpoint=self._written[member, env_steps]
        )
