"""The sharing of environments among workers, their times, and how long a rollout waits for each."""

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
    """The number of environments of each worker, in proportion to its rate, but at least one.
    rates: environments per second; None: unknown, taken as the others' mean.

    Raises ValueError for more workers than environments: the caller leaves some out.
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
    """The parts of workers with `counts` environments each, one after the other."""
    edges = [0, *itertools.accumulate(counts)]
    return list(zip(edges, counts, strict=False))


def is_worth_moving(
    counts: Sequence[int], rates: Sequence[float | None], better: Sequence[int]
) -> bool:
    """Whether `better` counts would let the slowest worker finish in three fifths of the time or
    less. Less is not worth it, as moved environments begin new episodes. False until all rates are
    known."""
    known = [rate for rate in rates if rate is not None and rate > 0]
    if len(known) < len(rates):
        return False
    now, then = (
        max(n / rate for n, rate in zip(these, known, strict=True)) for these in (counts, better)
    )
    return then <= _WORTHWHILE * now


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a rollout.

    environments  of each member
    answered      whether its rows have arrived
    grace_s       how much longer it may take; 0 if it is not waited for (lost, already late)
    """

    environments: int
    answered: bool
    grace_s: float = 0.0


def has_quorum(present: int, environments: int) -> bool:
    """Whether `present` environments of `environments` are enough to continue."""
    return present > 0 and present >= _QUORUM * environments


def remaining_wait_s(shares: Sequence[Share]) -> float:
    """How long to keep waiting: 0 if the rollout continues now without the missing parts; infinity
    while fewer than half of the environments have answered."""
    answered = sum(share.environments for share in shares if share.answered)
    if not has_quorum(answered, sum(share.environments for share in shares)):
        return math.inf
    return max((max(share.grace_s, 0.0) for share in shares if not share.answered), default=0.0)


class UsualDuration:
    """The durations of recent rollouts that arrived in time."""

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
        """How long a worker may take: three times the usual duration, and at least half a
        second."""
        if not self._durations:
            return _FIRST_GRACE_S
        return max(_LEAST_GRACE_S, _PATIENT_FACTOR * statistics.median(self._durations))


class RolloutTimes:
    """Times at which one worker's rollouts were requested, on the monotonic clock. `heard_at`: its
    last message, or the start of listening."""

    def __init__(self) -> None:
        self.heard_at = time.monotonic()
        self._asked_at: deque[float] = deque()
        self._durations: deque[float] = deque(maxlen=_RATES)

    @property
    def outstanding(self) -> int:
        """Requested rollouts that have not arrived."""
        return len(self._asked_at)

    @property
    def last_duration_s(self) -> float:
        """The duration of the newest rollout, from when the worker could begin it until it
        arrived."""
        return self._durations[-1]

    @property
    def usual_duration_s(self) -> float | None:
        """The usual duration of recent rollouts; None before a few have arrived."""
        if len(self._durations) < _LEAST_RATES:
            return None
        return sorted(self._durations)[len(self._durations) // 2]

    def age_s(self, now: float) -> float:
        """How long the next rollout has been awaited; without a request, the time since the last
        message."""
        return now - max([self.heard_at, *itertools.islice(self._asked_at, 1)])

    def ask(self) -> None:
        """Note that one more rollout is requested."""
        self._asked_at.append(time.monotonic())

    def arrive(self, at: float) -> None:
        """Note that the oldest requested rollout has arrived."""
        self._durations.append(at - max(self._asked_at.popleft(), self.heard_at))
        self.heard_at = at

    def forget_asked(self) -> None:
        """Requested rollouts will not arrive any more."""
        self._asked_at.clear()
