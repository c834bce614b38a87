"""Which environments of each member a worker has: one run of consecutive ones, so that all runs side by side are all of
them. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["Part", "consecutive", "is_worth_moving", "shares"]

Part = tuple[int, int]
"""The first environment, and how many."""

_WORTHWHILE = 0.6


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
    """Whether the slowest worker would be done in three fifths of the time or less with `better` counts: whoever gets
    other environments begins new episodes. Never before all rates are known."""
    known = [rate for rate in rates if rate is not None and rate > 0]
    if len(known) < len(rates):
        return False
    now, then = (max(n / rate for n, rate in zip(these, known, strict=True)) for these in (counts, better))
    return then <= _WORTHWHILE * now
