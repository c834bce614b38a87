"""One TRAIN lease: the core's round, with checkpoints, renewals and a result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from torch import Tensor

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import DeadlineExpired, Unavailable
from podracer_core.training import (
    TOTAL,
    EpochFusion,
    Judgement,
    MemberOutcome,
    Phases,
    TrainingSession,
)
from podracer_learner.checkpoints import CheckpointWriter, base_env_steps
from podracer_learner.config import LearnerConfig
from podracer_learner.lease import HeldLease, Interrupted
from podracer_learner.round.access import Commands, LearnerStatus
from podracer_learner.round.results import HURRY_S, CheckpointCommitter, RoundReports, StoreAway
from podracer_learner.round.setup import RoundSetup, StoredReplays
from podracer_platform.messages import seconds_to_duration
from podracer_platform.telemetry import are_recorded, current, span

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 0.3


class TrainRun:
    """Trains until the budget is used, the target is reached, or the learner is told to stop."""

    def __init__(
        self,
        held: HeldLease,
        setup: RoundSetup,
        stop: threading.Event,
        status: LearnerStatus,
        commands: Commands,
        config: LearnerConfig,
        fusion: EpochFusion | None,
    ) -> None:
        """`config`: how long to wait for an unavailable evaluator or store that is required.
        `fusion`: with followers, whose steps count as this learner's once they are fused."""
        work, lease = held.lease.train, held.lease
        self._held, self._setup, self._stop, self._commands = held, setup, stop, commands
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
            work.evaluation.evaluator,
        )
        replays = StoredReplays(setup.algorithm, held.store.url, asked_for=work.keep_replay)
        self._session = TrainingSession(
            setup.algorithm,
            setup.source,
            setup.backend,
            setup.plan,
            began_at=held.received_at,
            used_before=held.used_before,
            episode_steps=lambda: setup.episode_steps,
            base_env_steps=[base_env_steps(agent) for agent in self._members],
            interrupted=self._interrupted,
            told_to_end=self._told_to_end,
            fusion=fusion,
            phases=Phases(span if are_recorded() else None),
        )
        self._checkpoints = CheckpointCommitter(
            held, writer, replays, self._session, config.store_patience, self._interrupted
        )
        self._fusion, self._evaluator_patience_s = fusion, config.peer_patience
        self._reports = RoundReports(held, setup, self._session, status)
        self.outcomes: Sequence[MemberOutcome] = []  # once the work is completed

    def run(self) -> bool:
        """Train and complete the work. False if it was interrupted; then the current state is
        committed."""
        try:
            return self._run()
        finally:
            current().set(**self._session.phases.attributes, **self._evaluation_attributes())

    def _run(self) -> bool:
        session = self._session
        try:
            with self._commands.serving(self):
                while not (session.finished or self._told_to_end() or self._reports.all_failed):
                    self._step()
            if not self._interrupted():
                self._conclude()
                return True
        except Interrupted:
            logger.info("interrupted while waiting")
        except StoreAway:
            raise
        except (Unavailable, DeadlineExpired):
            # a peer is lost: commit the state for the pod that continues
            self._checkpoints.commit_now(range(len(self._members)))
            raise
        self._checkpoints.commit_now(range(len(self._members)))
        return False

    def policy(self, members: Sequence[int]) -> tuple[int, dict[str, Tensor]]:
        """Version and stacked tensors of these members' actors."""
        algorithm = self._setup.algorithm
        return algorithm.version, {
            name: one[list(members)] for name, one in algorithm.actor_state().items()
        }

    def checkpoint_now(self, members: Sequence[int]) -> list[agent_pb2.CheckpointReference]:
        """Write and commit these members as they are, on request. Training and the caller wait for
        it."""
        return self._checkpoints.commit_now(members, HURRY_S)

    def _evaluation_attributes(self) -> dict[str, float]:
        """The evaluator's time on orders; without an evaluator they are a phase of this process."""
        selection, backend = self._session.selection, self._setup.backend
        if selection is None or backend is None or backend.blocking:
            return {}
        return {f"{TOTAL}order": round(selection.spent_s, 6)}

    def _step(self) -> None:
        self._held.guard.check()
        # What is committed can be given no evaluation any more, so a state that was looked at is
        # not.
        wants_checkpoint = self._checkpoints.is_due
        if self._session.selection is not None:
            self._session.selection.admit_from(self._held.renewal.admission_score)
        looked = self._session.step(may_look=not wants_checkpoint)
        self._reports.deliver()
        self._reports.report(_REPORT_INTERVAL_S)
        if looked or self._session.finished:
            return
        self._commands.run_pending()
        self._checkpoints.commit_behind()

    def _interrupted(self) -> bool:
        return self._stop.is_set() or self._held.renewal.calls_back

    def _told_to_end(self) -> bool:
        return (
            self._interrupted() or self._held.renewal.action == pod_service_pb2.LEASE_ACTION_FINISH
        )

    def _conclude(self) -> None:
        """The last evaluations, the checkpoints, and the result."""
        session, selection = self._session, self._session.selection
        self._checkpoints.go_on()
        wants_look = (
            selection is not None and selection.confirmed is None and not selection.is_concluding
        )
        if wants_look and self._checkpoints.furthest_steps >= max(session.moment().env_steps):
            session.step()  # else the last state could be given no evaluation
        if self._fusion is not None:
            self._fusion.finish()  # followers need not wait for the evaluations and the checkpoints
        if session.confirmed is not None:
            self._commit_winner(session.confirmed)
        elif selection is not None:
            selection.admit_from(self._held.renewal.admission_score)
        self._reports.report()  # all steps are done; the evaluations may take a while
        outcomes = session.conclude(timeout_s=self._evaluator_patience_s)
        if self._interrupted():
            raise Interrupted("told to stop at the end of the round")
        self._reports.deliver()
        self._reports.report()
        self._complete(outcomes)

    def _commit_winner(self, confirmed: Judgement) -> None:
        """Commit the member that reached the target first, before anything else is written."""
        self._reports.deliver()
        self._checkpoints.commit_winner(confirmed)
        logger.info(
            "target reached by %s: %s after %.2f s",
            self.agents[confirmed.member],
            confirmed.result.mean,
            confirmed.confirm_time_s,
        )

    def _complete(self, outcomes: Sequence[MemberOutcome]) -> None:
        self._checkpoints.write_last(outcomes)
        elapsed_s = self._session.elapsed_s
        result = pod_service_pb2.TrainResult(
            members=[self._result(outcome) for outcome in outcomes],
            train_time=seconds_to_duration(elapsed_s),
            env_steps_per_second=sum(outcome.env_steps for outcome in outcomes) / elapsed_s,
            sizes=self._setup.sizes,
            breaks=self._reports.breaks(),
        )
        self._held.control.complete(pod_service_pb2.CompleteWorkRequest(train=result))
        self.outcomes = outcomes

    def _result(self, outcome: MemberOutcome) -> pod_service_pb2.MemberResult:
        agent = self.agents[outcome.member]
        result = pod_service_pb2.MemberResult(
            final=self._checkpoints.member_checkpoint(outcome),
            evaluations=[one for one in self._held.renewal.undelivered() if one.agent == agent],
        )
        if outcome.candidate is not None:
            result.candidate.CopyFrom(self._reports.message_of(outcome.candidate))
            result.candidate.checkpoint.CopyFrom(
                self._checkpoints.written(outcome.member, outcome.candidate.env_steps)
            )
        if outcome.failed:
            result.problem.CopyFrom(
                cohort_pb2.Problem(
                    reason="DIVERGED",
                    message=f"{agent} diverged: its gradients were not finite; it was frozen "
                    "before",
                )
            )
        return result
