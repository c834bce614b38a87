"""Intervals and bounds of means, without SciPy or NumPy: Student's t distribution; the one-sided
bootstrap-t bound (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", 12.5), by which
services that have no NumPy test claims; and the values behind scores of unequal precision, by
empirical Bayes and REML.

A score x_i is the mean of n_i episodes: x_i | θ_i ~ N(θ_i, s² / n_i) and θ_i ~ N(μ, τ²). s² is
pooled over all episodes, τ² is the residual maximum likelihood estimate, and μ the mean weighted by
1 / (τ² + s² / n_i)."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from operator import mul
from statistics import variance

_ITERATIONS = 200
# of `excess_probability`, where more of one agent's episodes break than of the others'
EXCESS_LEVEL = 0.01


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by Lentz's continued fraction (Numerical
    Recipes, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, _ITERATIONS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + numerator * d or tiny)
            c = 1.0 + numerator / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * fraction / a


def student_t_cdf(t: float, degrees: int) -> float:
    """P(T <= t) with `degrees` of freedom."""
    tail = 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))
    return tail if t < 0 else 1.0 - tail


@functools.cache
def student_t_quantile(probability: float, degrees: int) -> float:
    """The t with P(T <= t) = probability, 0.5 <= probability < 1, degrees >= 1; by bisection, to
    1e-10."""
    low, high = 0.0, 1.0
    while student_t_cdf(high, degrees) < probability:
        high *= 2.0
    while high - low > 1e-11 * max(1.0, high):
        middle = 0.5 * (low + high)
        if student_t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def student_t_half_width(deviation: float, count: int) -> float:
    """Half the width of the two-sided 95 % interval of the mean of `count` values; infinite for
    one."""
    return (
        math.inf
        if count < 2
        else student_t_quantile(0.975, count - 1) * deviation / math.sqrt(count)
    )


def excess_probability(count: int, of: int, other_count: int, other_of: int) -> float:
    """The probability of `count` or more of the `count + other_count` events among `of` of `of +
    other_of` trials, if all trials are equally likely to have one: Fisher's exact test,
    one-sided."""
    events, trials = count + other_count, of + other_of

    def combinations(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    most, everything = min(events, of), combinations(trials, events)
    terms = (
        math.exp(combinations(of, k) + combinations(other_of, events - k) - everything)
        for k in range(max(count, events - other_of), most + 1)
    )
    return min(1.0, math.fsum(terms))


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


LEAST_SPREAD = 1 / 32
"""Least τ² in units of s²: scores whose differences look like noise are still told apart by their
means."""
_STEPS = 50


def posterior_means(
    scores: Sequence[float], episodes: Sequence[int], variances: Sequence[float]
) -> tuple[float, ...]:
    """E[θ_i | x] of each of the `scores`, which are means of `episodes` episodes with sample
    `variances`.

    They are the scores themselves where no episodes differ, or only one is given.
    """
    freedom = sum(count - 1 for count in episodes)
    noise = sum((count - 1) * each for count, each in zip(episodes, variances, strict=True)) / max(
        freedom, 1
    )
    if noise <= 0.0 or len(scores) < 2:
        return tuple(scores)
    errors = [noise / count for count in episodes]
    spread = max(reml_variance(scores, errors), LEAST_SPREAD * noise)
    middle = _middle(scores, [1.0 / (spread + error) for error in errors])
    pairs = zip(scores, errors, strict=True)
    return tuple(middle + spread / (spread + error) * (score - middle) for score, error in pairs)


def reml_variance(scores: Sequence[float], errors: Sequence[float]) -> float:
    """The residual maximum likelihood estimate of τ², at least 0, where x_i ~ N(μ, τ² + errors_i);
    by Fisher scoring.

    At least two `scores`, whose error variances are above 0.
    """
    spread = variance(scores)
    for _ in range(_STEPS):
        weights = [1.0 / (spread + error) for error in errors]
        middle, total = _middle(scores, weights), sum(weights)
        squares = sum(weight**2 for weight in weights)
        cubes = sum(weight**3 for weight in weights)
        misfit = sum(
            (weight * (score - middle)) ** 2 for weight, score in zip(weights, scores, strict=True)
        )
        information = squares - 2.0 * cubes / total + (squares / total) ** 2
        former = spread
        spread = max(0.0, spread + (misfit - total + squares / total) / information)
        if abs(spread - former) <= 1e-9 * (spread + errors[0]):
            break
    return spread


def _middle(scores: Sequence[float], weights: Sequence[float]) -> float:
    return sum(weight * score for weight, score in zip(weights, scores, strict=True)) / sum(weights)
