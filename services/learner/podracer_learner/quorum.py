"""How long a rollout waits for workers that have not answered: a slow or dead one costs only its own share."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Share", "UsualDuration", "has_quorum", "remaining_wait_s"]

_QUORUM = 0.5
_PATIENT_FACTOR = 3.0
_LEAST_GRACE_S = 0.5
_FIRST_GRACE_S = 10.0  # as long as nothing has been measured: environments start, caches fill
_REMEMBERED = 9


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
        """Who collects what has changed."""
        self._durations.clear()

    @property
    def grace_s(self) -> float:
        """How long a worker may take: three times as long as is usual, and half a second in any case."""
        if not self._durations:
            return _FIRST_GRACE_S
        return max(_LEAST_GRACE_S, _PATIENT_FACTOR * statistics.median(self._durations))
