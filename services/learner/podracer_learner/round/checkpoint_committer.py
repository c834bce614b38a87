"""Members' checkpoints of a lease: writing and committing."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import DeadlineExpired, Exhausted, Unavailable
from podracer_core.sections.pod import CHECKPOINT_INTERVAL_S
from podracer_core.training.session import MemberOutcome, TrainingSession
from podracer_core.training.snapshots import Judgement
from podracer_learner.checkpoints import CheckpointWriter, MemberWrite
from podracer_learner.lease.control import CommitCall
from podracer_learner.lease.held_lease import HeldLease
from podracer_learner.round.initial_agents import StoredReplays
from podracer_learner.round.reports import member_progress
from podracer_platform.messages.sections import seconds_from_duration
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.rpc.status import translated_errors

logger = logging.getLogger(__name__)

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
