"""The one-sided bootstrap-t bound of a mean (Efron and Tibshirani 1993, "An Introduction to the
Bootstrap", 12.5), in plain Python: services that have no NumPy test claims by it."""

from __future__ import annotations

import functools
import math
import random
from operator import mul

from podracer_core.statistics.student_t import student_t_quantile

FALSE_CLAIMS = 0.05
"""Probability that a training whose agents all stay below the target is said to have reached it,
however often it claims to: the levels 6 α / (π² k²) of its claims k = 1, 2, … add up to α."""
LEAST_RESAMPLES, MOST_RESAMPLES = 999, 3999
"""Limits of the number of resamples, which is such that `_BEYOND` of them lie beyond the bound: 100
values take a fifteenth of a second at most. A level that needs more is extrapolated."""
_BEYOND = 4
_LEAST_ERROR = 0.5
"""A resample's standard error counts as this part of the sample's at least: one without the few
episodes that failed has nearly none, and would make every bound infinite."""


def claim_level(number: int) -> float:
    """The one-sided level at which claim `number` of the target, from 1, is tested."""
    return 6.0 * FALSE_CLAIMS / (math.pi * number) ** 2


@functools.lru_cache(maxsize=64)
def bootstrap_t_lower_bound(values: tuple[float, ...], level: float, seed: int) -> float:
    """The bound that the mean of two `values` or more exceeds with probability 1 - `level`; the
    same `seed` gives the same bound.

    mean - q * error, where q is the 1 - `level` quantile of (mean* - mean) / error* over resamples,
    and at least that of Student's t: resamples of few different values know too little of what is
    rare. Below the least level that MOST_RESAMPLES can tell, q exceeds that of Student's t by the
    same factor as there."""
    count = len(values)
    mean = sum(values) / count
    centered = [value - mean for value in values]
    error = math.sqrt(sum(map(mul, centered, centered)) / (count - 1) / count)
    if error == 0.0:
        return mean
    told = max(level, _BEYOND / (MOST_RESAMPLES + 1))
    wanted = max(LEAST_RESAMPLES, math.ceil(_BEYOND / told) - 1)
    choose = random.Random(seed).choices  # noqa: S311 - statistics
    ratios = [_ratio(choose(centered, k=count), _LEAST_ERROR * error) for _ in range(wanted)]
    quantile = sorted(ratios)[wanted - math.floor(told * (wanted + 1))]
    factor = max(1.0, quantile / student_t_quantile(1.0 - told, count - 1))
    return mean - factor * student_t_quantile(1.0 - level, count - 1) * error


def _ratio(resample: list[float], least_error: float) -> float:
    """The resample's mean over its standard error."""
    count = len(resample)
    mean = sum(resample) / count
    variance = (sum(map(mul, resample, resample)) / count - mean * mean) * count / (count - 1)
    return mean / max(math.sqrt(max(variance, 0.0) / count), least_error)
