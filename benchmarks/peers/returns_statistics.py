"""Interquartile means over seeds with stratified bootstrap intervals (Agarwal et al. 2021,
arXiv:2108.13264)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
_TRIMMED = 0.25

Scores = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean and its percentile interval at 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:,.0f} ({self.low:,.0f} – {self.high:,.0f})"


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the last axis: the mean without the lowest and the highest quarter, rounded down (of 5
    seeds one each)."""
    count = scores.shape[-1]
    cut = int(_TRIMMED * count)
    ordered: NDArray[np.float64] = np.sort(scores, axis=-1)[..., cut : count - cut]
    return np.asarray(ordered.mean(-1))


def estimate(*strata: Scores) -> Estimate:
    """Of the scores of one or more tasks, a stratum each: seeds are drawn again within each task,
    then all scores count as one sample."""
    random = np.random.default_rng(0)
    given = [np.asarray(scores, dtype=np.float64) for scores in strata]
    drawn = [
        scores[random.integers(len(scores), size=(RESAMPLES, len(scores)))] for scores in given
    ]
    low, high = np.percentile(interquartile_mean(np.concatenate(drawn, -1)), [2.5, 97.5])
    return Estimate(float(interquartile_mean(np.concatenate(given))), float(low), float(high))
