"""Posterior means of scores with unequally many episodes, worked by hand."""

from __future__ import annotations

import math

import pytest

from podracer_core.statistics import posterior_means, reml_variance


def likelihood(spread: float, scores: list[float], errors: list[float]) -> float:
    """Twice the logarithm of the residual likelihood, but for a constant."""
    weights = [1.0 / (spread + error) for error in errors]
    middle = sum(map(math.prod, zip(weights, scores, strict=True))) / sum(weights)
    misfit = sum(
        weight * (score - middle) ** 2 for weight, score in zip(weights, scores, strict=True)
    )
    return sum(map(math.log, weights)) - math.log(sum(weights)) - misfit


def test_the_spread_of_two_scores_is_that_of_their_difference():
    """It is N(0, 2 τ² + 12.5 + 3.125), so τ² = (20² - 15.625) / 2; nothing is left where errors
    explain it."""
    assert reml_variance([0.0, 20.0], [12.5, 3.125]) == pytest.approx(192.1875)
    assert reml_variance([0.0, 3.0], [12.5, 3.125]) == 0.0


def test_with_equal_errors_it_is_what_the_sample_varies_by_beyond_them():
    assert reml_variance([1.0, 2.0, 6.0], [2.0, 2.0, 2.0]) == pytest.approx(7.0 - 2.0)


def test_it_is_where_the_residual_likelihood_is_greatest():
    scores, errors = [3.0, -40.0, 12.0, 25.0, 31.0], [50.0, 12.5, 12.5, 3.0, 100.0]
    found = reml_variance(scores, errors)
    best = likelihood(found, scores, errors)
    assert all(likelihood(found * part, scores, errors) < best for part in (0.9, 0.999, 1.001, 1.1))


def test_scores_are_drawn_to_their_weighted_mean():
    """s² = 100 and τ² = 192.1875 as above; μ = 20 · 204.6875 / 400 = 10.234375. What is left of the
    way to it is 12.5 / 204.6875 for the first score, 3.125 / 195.3125 for the second."""
    assert posterior_means([0.0, 20.0], [8, 32], [100.0, 100.0]) == pytest.approx([0.625, 19.84375])


def test_what_has_no_error_stays_as_it_is():
    assert posterior_means([1.0, 2.0], [1, 32], [0.0, 0.0]) == (1.0, 2.0)
    assert posterior_means([1.0], [8], [4.0]) == (1.0,)
    assert posterior_means([5.0, 5.0], [8, 32], [4.0, 4.0]) == pytest.approx([5.0, 5.0])
