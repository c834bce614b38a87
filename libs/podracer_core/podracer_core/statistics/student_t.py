"""Student's t distribution, without SciPy or NumPy."""

from __future__ import annotations

import functools
import math

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
