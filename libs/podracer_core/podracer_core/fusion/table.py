"""Who has brought what to a fusion, and when it takes place: the state of a lead, without a network or a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from podracer_core.errors import InvalidInput
from podracer_core.fusion.fuse import fuse
from podracer_core.fusion.fusion import Fusion
from podracer_core.fusion.state import Contribution, Fused, FusionState

LEAD = 0
"""The rank of the lead."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How an epoch of the lead ends.

    fused     None: too few had brought anything, nothing was fused, and all train on from where they are
    answered  the ranks, the lead's among them, whose contributions this settles
    """

    fused: Fused | None
    answered: tuple[int, ...]


class FusionTable:
    """Followers join and leave as they like; the lead's own contribution opens a fusion, `decide` closes it.

    - Whoever sits at the table when the lead has trained its epoch is waited for until the deadline. So nobody waits
      for learners that have not come yet or have gone.
    - Whoever misses a deadline is late, and not waited for again before it has brought something: one that is ten times
      slower costs one deadline in ten epochs.
    - What is brought to a fusion that has taken place is not used. Its learner gets the present state instead, from
      which it goes on: it is at the table again.
    - With less than the quorum nothing is fused. What was brought is settled: its learner trains on, and brings more to
      the next. The quorum is of those at the table: who has gone can lose nothing by being left out.

    All calls come from under one lock of the caller's. `now` is in seconds of any clock that only goes on.
    """

    def __init__(self, fusion: Fusion, state: FusionState, *, quorum: int = 0, deadline_s: float) -> None:
        """`state`: from which all begin. quorum: learners, the lead among them; 0: more than half."""
        self._fusion, self._quorum, self._deadline_s = fusion, quorum, deadline_s
        self._present = Fused(0, state, ())
        self._joined: set[int] = set()
        self._late: set[int] = set()
        self._awaited: set[int] = set()
        self._brought: dict[int, Contribution] = {}
        self._deadline: float | None = None

    @property
    def present(self) -> Fused:
        """The newest state that has been fused, or the one that all begin with: for who joins."""
        return self._present

    @property
    def brought(self) -> frozenset[int]:
        """Ranks whose contributions wait to be fused."""
        return frozenset(self._brought)

    def join(self, rank: int) -> None:
        """A follower goes on from `present`. What it had brought before is forgotten."""
        self.leave(rank)
        self._joined.add(rank)

    def leave(self, rank: int) -> None:
        """A follower has gone, and what it brought with it. Leaving twice is harmless."""
        for ranks in (self._joined, self._late, self._awaited):
            ranks.discard(rank)
        self._brought.pop(rank, None)

    def bring(self, contribution: Contribution) -> Fused | None:
        """A follower's contribution. None: it is kept for the fusion to come; else it came too late, and its learner
        goes on from what is returned. Raises InvalidInput for one that cannot be right."""
        rank, due = contribution.rank, self._present.epoch + 1
        if rank not in self._joined:
            raise InvalidInput(f"rank {rank} brings a contribution but has not joined", reason="BAD_FUSION")
        if not 0 < contribution.epoch <= due or rank in self._brought:
            raise InvalidInput(
                f"rank {rank} brings a contribution to fusion {contribution.epoch}, expected one to fusion {due}",
                reason="BAD_FUSION",
            )
        self._late.discard(rank)
        if contribution.epoch < due:
            self._awaited.discard(rank)
            return self._present
        self._present.state.require_like(contribution.growth)
        self._brought[rank] = contribution
        return None

    def open(self, contribution: Contribution, now: float, until: float = math.inf) -> None:
        """The lead has trained its epoch, and waits for the others from now on: to the deadline, to `until` at most."""
        self._brought[LEAD] = contribution
        self._awaited = self._joined - self._late - set(self._brought)
        self._deadline = min(now + self._deadline_s, until)

    def remaining_s(self, now: float) -> float:
        """Until the deadline; 0 where nothing is open."""
        return 0.0 if self._deadline is None else max(self._deadline - now, 0.0)

    def decide(self, now: float, *, at_once: bool = False) -> Decision | None:
        """None while somebody is waited for, which `at_once` ends as the deadline does, or where nothing is open."""
        if self._deadline is None:
            return None
        missing = self._awaited - set(self._brought)
        if missing and now < self._deadline and not at_once:
            return None
        self._late |= missing
        brought, self._brought = self._brought, {}
        self._awaited, self._deadline = set(), None
        answered = tuple(sorted(brought))
        learners = len(self._joined) + 1
        if len(brought) < min(self._quorum or learners // 2 + 1, learners):
            return Decision(None, answered)
        state = fuse(self._fusion, self._present.state, list(brought.values()))
        self._present = Fused(self._present.epoch + 1, state, answered)
        return Decision(self._present, answered)
