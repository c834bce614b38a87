"""Estimates of the values behind scores of unequal precision: empirical Bayes, by REML.

A score x_i is the mean of n_i episodes: x_i | θ_i ~ N(θ_i, s² / n_i) and θ_i ~ N(μ, τ²). s² is
pooled over all episodes, τ² is the residual maximum likelihood estimate, and μ the mean weighted by
1 / (τ² + s² / n_i)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import variance

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
