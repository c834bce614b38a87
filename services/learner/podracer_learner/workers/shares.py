"""Which environments a worker has, how long it takes for them, and how long a rollout waits for it."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Part = tuple[int, int]
"""The first environment, and how many."""

_WORTHWHILE = 0.6

_QUORUM = 0.5
_PATIENT_FACTOR = 3.0
_LEAST_GRACE_S = 0.5
_FIRST_GRACE_S = 10.0  # as long as nothing has been measured: environments start, caches fill
_REMEMBERED = 9
_RATES, _LEAST_RATES = 5, 3


def shares(environments: int, rates: Sequence[float | None]) -> list[int]:
    """How many environments each worker gets, in proportion to its rate (environments a second, None: not known yet, as
    fast as the others are on average), but at least one.

    Raises ValueError for more workers than environments: some of them have to be left out before.
    """
    if not 0 < len(rates) <= environments:
        raise ValueError(f"{environments} environments cannot be shared by {len(rates)} workers")
    known = [rate for rate in rates if rate is not None and rate > 0]
    usual = sum(known) / len(known) if known else 1.0
    weights = [rate if rate is not None and rate > 0 else usual for rate in rates]
    spare = environments - len(rates)
    exact = [spare * weight / sum(weights) for weight in weights]
    counts = [1 + int(share) for share in exact]
    # What rounding down has left goes to those that lost most by it.
    by_loss = sorted(range(len(rates)), key=lambda index: int(exact[index]) - exact[index])
    for index in by_loss[: environments - sum(counts)]:
        counts[index] += 1
    return counts


def consecutive(counts: Sequence[int]) -> list[Part]:
    """So many environments each, one worker after the other."""
    edges = [0, *itertools.accumulate(counts)]
    return list(zip(edges, counts, strict=False))


def is_worth_moving(counts: Sequence[int], rates: Sequence[float | None], better: Sequence[int]) -> bool:
    """Whether `better` counts would let the slowest worker finish in three fifths of the time or less. Less is not
    worth it, as moved environments begin new episodes. False until all rates are known."""
    known = [rate for rate in rates if rate is not None and rate > 0]
    if len(known) < len(rates):
        return False
    now, then = (max(n / rate for n, rate in zip(these, known, strict=True)) for these in (counts, better))
    return then <= _WORTHWHILE * now


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a rollout.

    environments  of each member
    answered      whether its rows are there
    grace_s       how much longer it may take; 0 where it is not waited for (lost, late already)
    """

    environments: int
    answered: bool
    grace_s: float = 0.0


def has_quorum(present: int, environments: int) -> bool:
    """Whether so many environments are enough to go on with."""
    return present > 0 and present >= _QUORUM * environments


def remaining_wait_s(shares: Sequence[Share]) -> float:
    """How long to wait on: 0 where the rollout goes on now, without what is missing; infinity while fewer than half of
    the environments have answered."""
    answered = sum(share.environments for share in shares if share.answered)
    if not has_quorum(answered, sum(share.environments for share in shares)):
        return math.inf
    return max((max(share.grace_s, 0.0) for share in shares if not share.answered), default=0.0)


class UsualDuration:
    """What rollouts have taken lately, of those that came in time."""

    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, duration_s: float) -> None:
        """The slowest worker of a rollout took so long."""
        self._durations.append(duration_s)

    def clear(self) -> None:
        """Forget all durations: the workers' parts have changed."""
        self._durations.clear()

    @property
    def grace_s(self) -> float:
        """How long a worker may take: three times as long as is usual, and half a second in any case."""
        if not self._durations:
            return _FIRST_GRACE_S
        return max(_LEAST_GRACE_S, _PATIENT_FACTOR * statistics.median(self._durations))


class RolloutTimes:
    """When one worker was asked for its rollouts, on the monotonic clock. `heard_at`: when it said something, or began
    to be listened to."""

    def __init__(self) -> None:
        self.heard_at = time.monotonic()
        self._asked_at: deque[float] = deque()
        self._durations: deque[float] = deque(maxlen=_RATES)

    @property
    def outstanding(self) -> int:
        """Rollouts that were asked for and have not come."""
        return len(self._asked_at)

    @property
    def last_duration_s(self) -> float:
        """What the newest rollout took, from when the worker could begin with it until it was here."""
        return self._durations[-1]

    @property
    def usual_duration_s(self) -> float | None:
        """What one took lately; None before a few have come."""
        if len(self._durations) < _LEAST_RATES:
            return None
        return sorted(self._durations)[len(self._durations) // 2]

    def age_s(self, now: float) -> float:
        """For how long the worker has owed its next rollout; where none was asked for, since it was heard of."""
        return now - max([self.heard_at, *itertools.islice(self._asked_at, 1)])

    def ask(self) -> None:
        """One more rollout is asked for."""
        self._asked_at.append(time.monotonic())

    def arrive(self, at: float) -> None:
        """The rollout that was asked for first has come."""
        self._durations.append(at - max(self._asked_at.popleft(), self.heard_at))
        self.heard_at = at

    def forget_asked(self) -> None:
        """What was asked for does not come any more."""
        self._asked_at.clear()
