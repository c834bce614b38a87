"""One TRAIN lease: the core's round, with checkpoints, renewals and a result around it."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import DeadlineExpired, Unavailable
from podracer_core.jobs.messages import seconds_from_duration, seconds_to_duration
from podracer_core.jobs.pod import CHECKPOINT_INTERVAL_S
from podracer_core.telemetry.spans import current
from podracer_core.training.epochs import EpochFusion
from podracer_core.training.phases import TOTAL
from podracer_core.training.session import MemberOutcome, TrainingSession
from podracer_core.training.snapshots import Judgement
from podracer_learner.checkpoints import CheckpointWriter, MemberWrite, base_env_steps
from podracer_learner.commands import Commands
from podracer_learner.lasting import HURRY_S, LastingCheckpoints, StoreAway
from podracer_learner.lease import HeldLease, Interrupted
from podracer_learner.messages import evaluation_message, member_progress, progress_report
from podracer_learner.observation import RoundMeter
from podracer_learner.replays import StoredReplays
from podracer_learner.round_setup import RoundSetup
from podracer_learner.status import LearnerStatus

__all__ = ["Patience", "TrainRun"]

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 0.3
_PACE_REPORTS = 16  # about the last five seconds


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for which what is away is waited for where nothing can go on without it."""

    evaluator_s: float
    store_s: float


class TrainRun:
    """Trains until the budget is used, the target is reached, or someone says stop."""

    def __init__(
        self,
        held: HeldLease,
        setup: RoundSetup,
        stop: threading.Event,
        status: LearnerStatus,
        commands: Commands,
        patience: Patience,
        fusion: EpochFusion | None,
    ) -> None:
        """`fusion`: with followers, whose steps count as this learner's own once they are fused."""
        work, lease = held.lease.train, held.lease
        self._held, self._setup, self._stop, self._status, self._commands = held, setup, stop, status, commands
        self._members = list(work.cohort.members)
        self.agents: Sequence[str] = [agent.name for agent in self._members]
        writer = CheckpointWriter(
            held.store,
            self._members,
            setup.cohort,
            lease.job_uid,
            lease.fence,
            setup.environment,
            setup.spaces,
            setup.replay_files,
        )
        self._replays = StoredReplays(setup.algorithm, held.store.url, asked_for=work.keep_replay)
        self._checkpoints = LastingCheckpoints(held, writer, patience.store_s, self._interrupted)
        self._interval_s = seconds_from_duration(work.checkpoint_interval) or CHECKPOINT_INTERVAL_S
        self._session = TrainingSession(
            setup.algorithm,
            setup.source,
            setup.judge,
            setup.plan,
            began_at=held.received_at,
            used_before=held.used_before,
            episode_steps=setup.episode_steps,
            base_env_steps=[base_env_steps(agent) for agent in self._members],
            interrupted=self._interrupted,
            fusion=fusion,
        )
        self._fusion, self._patience = fusion, patience
        self._meter = RoundMeter(self._session, setup.algorithm, setup.source)
        self._evaluation_ids = itertools.count(1)
        self._judged: list[tuple[Judgement, agent_pb2.Evaluation]] = []  # of snapshots
        self._reported_at = time.monotonic()
        self._pace = deque([(self._session.elapsed_s, 0)], maxlen=_PACE_REPORTS)  # seconds and steps
        self._all_failed = False
        self.outcomes: Sequence[MemberOutcome] = []  # once the work is completed

    def run(self) -> bool:
        """Train and complete the work. False where it was interrupted: then what there is has been committed."""
        try:
            return self._run()
        finally:
            current().set(**self._session.phases.attributes, **self._evaluation_attributes())

    def _run(self) -> bool:
        session = self._session
        try:
            with self._commands.serving(self):
                while not (session.finished or self._told_to_end() or self._all_failed):
                    self._step()
            if not self._interrupted():
                self._conclude()
                return True
        except Interrupted:
            logger.info("interrupted while waiting")
        except StoreAway:
            raise
        except (Unavailable, DeadlineExpired):  # a peer is lost: who goes on elsewhere shall have what there is
            self._checkpoint(range(len(self._members)))
            raise
        self._checkpoint(range(len(self._members)))
        return False

    def policy(self, members: Sequence[int]) -> tuple[int, dict[str, Tensor]]:
        """Version and stacked tensors of these members' actors."""
        algorithm = self._setup.algorithm
        return algorithm.version, {name: one[list(members)] for name, one in algorithm.actor_state().items()}

    def checkpoint_now(self, members: Sequence[int]) -> list[agent_pb2.CheckpointReference]:
        """Write and commit these members as they are, at somebody's request, who waits for it as training does."""
        return self._checkpoint(members, HURRY_S)

    def _checkpoint(self, members: Sequence[int], patience_s: float = math.inf) -> list[agent_pb2.CheckpointReference]:
        everybody = self._session.outcomes()
        outcomes = [everybody[member] for member in dict.fromkeys(members)]
        self._checkpoints.write([self._final_write(outcome) for outcome in outcomes], patience_s)
        written = [self._member_checkpoint(outcome) for outcome in outcomes]
        self._checkpoints.commit(written)
        return [one.checkpoint for one in written]

    def _evaluation_attributes(self) -> dict[str, float]:
        """What an evaluator's orders have taken; where there is none they are a phase of this process."""
        selection, judge = self._session.selection, self._setup.judge
        if selection is None or judge is None or judge.blocking:
            return {}
        return {f"{TOTAL}order": round(selection.spent_s, 6)}

    def _checkpoint_behind(self) -> None:
        """Write all members where it is time; training goes on until they are in the store and can be committed."""
        if self._checkpoints.idle_s >= self._interval_s:
            outcomes = self._session.outcomes()
            if self._checkpoints.try_write([self._final_write(outcome) for outcome in outcomes]):
                self._checkpoints.begin([self._member_checkpoint(outcome) for outcome in outcomes])
        self._checkpoints.go_on()

    def _step(self) -> None:
        self._held.guard.check()
        # What is committed can be given no evaluation any more, so a state that was looked at is not.
        wants_checkpoint = self._checkpoints.idle_s >= self._interval_s
        if self._session.selection is not None:
            self._session.selection.admit_from(self._held.renewal.admission_score)
        looked = self._session.step(may_look=not wants_checkpoint)
        self._deliver()
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._report(now)
        if looked or self._session.finished:
            return
        self._commands.run_pending()
        self._checkpoint_behind()

    def _interrupted(self) -> bool:
        return self._stop.is_set() or self._held.renewal.calls_back

    def _told_to_end(self) -> bool:
        return self._interrupted() or self._held.renewal.action == pod_service_pb2.LEASE_ACTION_FINISH

    def _report(self, now: float) -> None:
        progress = self._session.progress()
        self._pace.append((progress.elapsed_s, sum(progress.env_steps)))
        (began_s, began_steps), (now_s, now_steps) = self._pace[0], self._pace[-1]
        per_second = (now_steps - began_steps) / (now_s - began_s) if now_s > began_s else 0.0
        report = progress_report(self.agents, progress, per_second)
        self._held.renewal.report(report)
        self._status.training(self._held.lease, progress, per_second, self._setup)
        self._meter.count(progress)
        self._all_failed = not any(progress.active)
        self._reported_at = now

    def _deliver(self) -> None:
        """Hand new evaluations to the renewal."""
        selection = self._session.selection
        if selection is None or not (news := selection.take_news()):
            return
        messages = []
        for judgement in news:
            agent = self._members[judgement.member]
            evaluation_id = f"{self._held.lease.fence}-{next(self._evaluation_ids)}"
            message = evaluation_message(judgement, evaluation_id, agent.name, base_env_steps(agent))
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
        self._judged = [pair for pair in self._judged if any(pair[0] is one for one in kept)]  # others hold snapshots
        self._held.renewal.add_evaluations(messages)

    def _conclude(self) -> None:
        """The last evaluations, the checkpoints, and the result."""
        session, selection = self._session, self._session.selection
        self._checkpoints.go_on()
        wants_look = selection is not None and selection.confirmed is None and not selection.is_concluding
        if wants_look and self._checkpoints.furthest_steps >= max(session.moment().env_steps):
            session.step()  # else the last state could be given no evaluation
        if self._fusion is not None:
            self._fusion.finish()  # nobody has to wait for the evaluations and the checkpoints
        if session.confirmed is not None:
            self._commit_winner(session.confirmed)
        elif selection is not None:
            selection.admit_from(self._held.renewal.admission_score)
        outcomes = session.conclude(timeout_s=self._patience.evaluator_s, told_to_end=self._told_to_end)
        if self._interrupted():
            raise Interrupted("told to stop at the end of the round")
        self._deliver()
        self._report(time.monotonic())
        self._complete(outcomes)

    def _commit_winner(self, confirmed: Judgement) -> None:
        """Who reached the target comes first: its checkpoint counts before anything else is written."""
        self._deliver()
        write = self._candidate_write(confirmed, self._session.outcomes())
        self._checkpoints.write([write])
        if confirmed.env_steps > self._checkpoints.committed_steps(self.agents[confirmed.member]):
            progress = self._progress(confirmed.member, confirmed.env_steps, failed=False)
            reference = self._checkpoints.written(confirmed.member, confirmed.env_steps)
            self._checkpoints.commit([pod_service_pb2.MemberCheckpoint(progress=progress, checkpoint=reference)])
        logger.info(
            "target reached by %s: %s after %.2f s",
            self.agents[confirmed.member],
            confirmed.result.mean,
            confirmed.confirm_time_s,
        )

    def _complete(self, outcomes: Sequence[MemberOutcome]) -> None:
        writes = [self._candidate_write(one.candidate, outcomes) for one in outcomes if one.candidate is not None]
        writes += [self._final_write(outcome) for outcome in outcomes]
        # Where a member's last state is its candidate, the one checkpoint with the evaluation is both.
        self._checkpoints.write(list({(write.member, write.env_steps): write for write in reversed(writes)}.values()))
        elapsed_s = self._session.elapsed_s
        result = pod_service_pb2.TrainResult(
            members=[self._result(outcome) for outcome in outcomes],
            train_time=seconds_to_duration(elapsed_s),
            env_steps_per_second=sum(outcome.env_steps for outcome in outcomes) / elapsed_s,
            sizes=self._setup.sizes,
        )
        self._held.control.complete(pod_service_pb2.CompleteWorkRequest(train=result))
        self.outcomes = outcomes

    def _result(self, outcome: MemberOutcome) -> pod_service_pb2.MemberResult:
        agent = self.agents[outcome.member]
        result = pod_service_pb2.MemberResult(
            final=self._member_checkpoint(outcome),
            evaluations=[one for one in self._held.renewal.undelivered() if one.agent == agent],
        )
        if outcome.candidate is not None:
            result.candidate.CopyFrom(next(one for judged, one in self._judged if judged is outcome.candidate))
            result.candidate.checkpoint.CopyFrom(self._checkpoints.written(outcome.member, outcome.candidate.env_steps))
        if outcome.failed:
            result.problem.CopyFrom(
                cohort_pb2.Problem(
                    reason="DIVERGED", message=f"{agent} diverged: its gradients were not finite; it was frozen before"
                )
            )
        return result

    def _candidate_write(self, judgement: Judgement, outcomes: Sequence[MemberOutcome]) -> MemberWrite:
        snapshot, outcome = judgement.snapshot, outcomes[judgement.member]
        assert snapshot is not None, "a candidate is judged by its snapshot"
        environment = outcome.environment if outcome.env_steps == judgement.env_steps else None
        return MemberWrite(
            judgement.member,
            judgement.env_steps,
            snapshot.state,
            environment,
            judgement.result,
            self._replays.of(judgement.member),
        )

    def _final_write(self, outcome: MemberOutcome) -> MemberWrite:
        replay = self._replays.of(outcome.member)
        return MemberWrite(outcome.member, outcome.env_steps, outcome.state, outcome.environment, replay=replay)

    def _member_checkpoint(self, outcome: MemberOutcome) -> pod_service_pb2.MemberCheckpoint:
        """Of what has been written."""
        progress = self._progress(outcome.member, outcome.env_steps, failed=outcome.failed)
        reference = self._checkpoints.written(outcome.member, outcome.env_steps)
        return pod_service_pb2.MemberCheckpoint(progress=progress, checkpoint=reference)

    def _progress(self, member: int, env_steps: int, *, failed: bool) -> pod_service_pb2.MemberProgress:
        now = self._session.progress()
        message = member_progress(
            self.agents[member], env_steps, now.used_s, now.evaluation_s, len(self.agents), failed
        )
        if math.isfinite(now.returns[member]):
            message.training_return = now.returns[member]
        return message
