"""The recorded curves of a task as arrays, and one draw of what a method of selection would have
seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from recorded.curves import Curve
from recorded.tasks import EPISODES, LOOKS

Array = NDArray[np.float64]

FEW, MANY = 8, 16
"""Episodes by which a method judges an agent: as many as a job's looks have, and twice that, which
the leaders get. The others of a look say what the agent is worth; no method sees them."""


@dataclass(frozen=True)
class Recording:
    """The curves of a task, in the list's order.

    returns   [C, looks + 1, EPISODES]
    ends      [C]: the mean of all episodes of the last three looks
    defaults  how many of the first are the defaults of an algorithm
    """

    returns: Array
    ends: Array
    defaults: int

    @classmethod
    def of(cls, curves: Sequence[Curve], looks: int = LOOKS) -> Recording:
        """Of the first `looks` looks of curves that have these at the same moments."""
        ordered = sorted((curve.cut(looks) for curve in curves), key=lambda curve: curve.number)
        returns = [[look.returns[:EPISODES] for look in curve.looks] for curve in ordered]
        defaults = len({curve.algorithm for curve in ordered})
        return cls(
            np.array(returns, dtype=float), np.array([curve.end for curve in ordered]), defaults
        )

    @property
    def count(self) -> int:
        return len(self.ends)

    @property
    def looks(self) -> int:
        """Looks until the end."""
        return self.returns.shape[1] - 1

    @property
    def untrained(self) -> float:
        """The mean return before any training: normalized, 0. The best end is 1."""
        return float(self.returns[:, 0].mean())

    def normalized(self, values: Array) -> Array:
        """0: as without training, 1: as the best of all curves at its end."""
        return (values - self.untrained) / (self.ends.max() - self.untrained)

    def drawn(
        self, random: np.random.Generator, resampled: NDArray[np.int64] | None = None
    ) -> Draw:
        """The defaults first, the others in any order. `resampled`: of the others these in place of
        each one once."""
        others = np.arange(self.defaults, self.count) if resampled is None else resampled
        order = np.concatenate([np.arange(self.defaults), random.permutation(others)])
        # One choice for all: the episodes of a look are the same ones for every agent.
        shown = self.returns[order][:, :, random.permutation(self.returns.shape[2])]
        few, many = shown[:, :, :FEW], shown[:, :, :MANY]
        return Draw(
            order,
            few.mean(2),
            many.mean(2),
            few.var(2, ddof=1),
            many.var(2, ddof=1),
            self.normalized(shown[:, :, MANY:].mean(2)),
            self.normalized(self.ends[order]),
        )


@dataclass(frozen=True)
class Draw:
    """What can be seen of agents 0, 1, … in the order in which they begin, at each look: [agents,
    looks + 1].

    order                  the agents' places in the list
    few, many              means of FEW and MANY episodes; `few_variance`, `many_variance`: their
                           sample variances
    worth                  normalized, from other episodes: what is gained by choosing an agent at a
                           look
    ends                   normalized, [agents]
    """

    order: NDArray[np.int64]
    few: Array
    many: Array
    few_variance: Array
    many_variance: Array
    worth: Array
    ends: Array

    @property
    def looks(self) -> int:
        """Looks until the end."""
        return self.few.shape[1] - 1


def spearman(left: Array, right: Array) -> float:
    """Spearman's rank correlation of two vectors; equal values share the mean of their ranks, 0
    where all are equal."""
    ranks = [_ranks(each) - (len(each) - 1) / 2 for each in (left, right)]
    scale = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / scale if scale > 0.0 else 0.0


def _ranks(values: Array) -> Array:
    """From 0."""
    ordered = np.sort(values)
    first = np.searchsorted(ordered, values, "left")
    last = np.searchsorted(ordered, values, "right")
    ranks: Array = (first + last - 1) / 2
    return ranks


def interval(values: Array) -> tuple[float, float]:
    """The middle 95 % of bootstrap estimates."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
