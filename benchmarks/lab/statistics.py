"""Medians and ratios of measurements, and interquartile means over seeds with stratified bootstrap
intervals (Agarwal et al. 2021, arXiv:2108.13264)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
_TRIMMED = 0.25

Array = NDArray[np.float64]
Scores = Sequence[float] | Array


@dataclass(frozen=True)
class Estimate:
    """A statistic and its percentile interval at 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:,.0f} ({self.low:,.0f} – {self.high:,.0f})"


def median(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios, each of two runs that followed one another."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """None where one of them is."""
    return ours / theirs if ours is not None and theirs is not None else None


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which a part of them lies; infinite where there is none."""
    ordered = sorted(values) or [float("inf")]
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def interquartile_mean(scores: Array) -> Array:
    """Of the last axis: the mean without the lowest and the highest quarter, rounded down (of 5
    seeds one each)."""
    count = scores.shape[-1]
    cut = int(_TRIMMED * count)
    ordered: Array = np.sort(scores, axis=-1)[..., cut : count - cut]
    return np.asarray(ordered.mean(-1))


def resampled(scores: Scores, random: np.random.Generator) -> Array:
    """[RESAMPLES, n]: as many scores as there are, drawn again."""
    given = np.asarray(scores, dtype=np.float64)
    return given[random.integers(len(given), size=(RESAMPLES, len(given)))]


def interval(drawn: Array) -> tuple[float, float]:
    """The middle 95 % of a resampled statistic."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def estimate(*strata: Scores, statistic: Callable[[Array], Array] = interquartile_mean) -> Estimate:
    """Of the scores of one or more tasks, a stratum each: seeds are drawn again within each task,
    then all scores count as one sample."""
    random = np.random.default_rng(0)
    given = [np.asarray(scores, dtype=np.float64) for scores in strata]
    low, high = interval(
        statistic(np.concatenate([resampled(scores, random) for scores in given], -1))
    )
    return Estimate(float(statistic(np.concatenate(given))), low, high)
