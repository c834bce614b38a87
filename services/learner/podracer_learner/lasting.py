"""What a lease has written, and what of it has been committed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.errors import Exhausted, Unavailable
from podracer_learner.checkpoints import CheckpointWriter, MemberWrite
from podracer_learner.lease import HeldLease

__all__ = ["HURRY_S", "LastingCheckpoints", "StoreAway"]

logger = logging.getLogger(__name__)

_POLL_S = 0.1
HURRY_S = 10.0


class StoreAway(Unavailable):
    """The object store has taken nothing for longer than it is waited for."""

    reason = "STORE_AWAY"


class LastingCheckpoints:
    """Writes members' checkpoints, each once, and commits them as soon as they are in the store: at once where the
    store is a folder, behind training where it is not.

    furthest_steps   of a member in a checkpoint, in this lease; -1 before the first
    """

    def __init__(
        self, held: HeldLease, writer: CheckpointWriter, patience_s: float, interrupted: Callable[[], bool]
    ) -> None:
        """`patience_s`: how long the store is waited for where nothing can go on without it; who is `interrupted`
        waits for less."""
        self._held, self._writer, self._patience_s, self._interrupted = held, writer, patience_s, interrupted
        self._written: dict[tuple[int, int], agent_pb2.CheckpointReference] = {}  # by member and steps
        self._under_way: list[pod_service_pb2.MemberCheckpoint] = []
        self._committed_steps: dict[str, int] = {}
        self._tried_at = time.monotonic()
        self.furthest_steps = -1

    @property
    def idle_s(self) -> float:
        """Seconds since a commit, or since an attempt that had to be given up; 0 while one is under way."""
        return 0.0 if self._under_way else time.monotonic() - self._tried_at

    def written(self, member: int, env_steps: int) -> agent_pb2.CheckpointReference:
        """What has been written of a member at so many steps of this lease."""
        return self._written[member, env_steps]

    def committed_steps(self, agent: str) -> int:
        """Steps of this lease that count; -1 before the first commit."""
        return self._committed_steps.get(agent, -1)

    def try_write(self, writes: Sequence[MemberWrite]) -> bool:
        """Write without waiting for the store; false, with a warning, where that cannot be done now."""
        try:
            self._write(writes)
        except (Unavailable, Exhausted) as error:
            logger.warning("no checkpoint now: %s", error.message)
            self._tried_at = time.monotonic()
            return False
        return True

    def write(self, writes: Sequence[MemberWrite], patience_s: float = math.inf) -> None:
        """Write; all that was written lasts when this returns. Raises StoreAway after its own patience, or this."""

        def has_written() -> bool:
            try:
                self._write(writes)
            except (Unavailable, Exhausted) as error:
                logger.info("a checkpoint waits: %s", error.message)
                return False
            return True

        self._wait_until(has_written, patience_s)
        self.finish(patience_s)

    def begin(self, members: list[pod_service_pb2.MemberCheckpoint]) -> None:
        """Have these, which have been written, committed by `go_on` or `finish`."""
        self._under_way = members

    def go_on(self) -> None:
        """Commit what is under way, if the store has it by now."""
        if self._under_way and self._held.store.settle():
            self._commit_begun()

    def finish(self, patience_s: float = math.inf) -> None:
        """Wait until all that was written is in the store, and commit what is under way."""
        self._wait_until(lambda: self._held.store.settle(_POLL_S), patience_s)
        self._commit_begun()

    def commit(self, members: list[pod_service_pb2.MemberCheckpoint]) -> None:
        """Have them count; they have to last."""
        self._held.control.commit(members)
        self._writer.committed([one.checkpoint for one in members])
        self._committed_steps |= {one.progress.agent: one.progress.env_steps for one in members}
        self._tried_at = time.monotonic()

    def _write(self, writes: Sequence[MemberWrite]) -> None:
        def note(write: MemberWrite, reference: agent_pb2.CheckpointReference) -> None:
            self._written[write.member, write.env_steps] = reference

        self._writer.write([one for one in writes if (one.member, one.env_steps) not in self._written], note)
        self.furthest_steps = max([self.furthest_steps, *(write.env_steps for write in writes)])

    def _commit_begun(self) -> None:
        if self._under_way:
            self.commit(self._under_way)
            self._under_way = []

    def _wait_until(self, ready: Callable[[], bool], most_s: float) -> None:
        began_at = time.monotonic()
        while not ready():
            self._held.guard.check()
            patience_s = min(self._patience_s, most_s, HURRY_S if self._interrupted() else math.inf)
            if time.monotonic() - began_at > patience_s:
                raise StoreAway(f"{self._held.store.url} has taken nothing for {patience_s:.0f} s")
            time.sleep(_POLL_S)
