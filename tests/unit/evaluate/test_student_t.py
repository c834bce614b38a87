"""Quantiles of Student's t against a printed table."""

from __future__ import annotations

import pytest

from podracer_core.statistics import excess_probability, student_t_cdf, student_t_quantile


@pytest.mark.parametrize(
    ("degrees", "probability", "expected"),
    [
        (1, 0.975, 12.7062),
        (2, 0.975, 4.3027),
        (3, 0.975, 3.1824),
        (7, 0.975, 2.3646),
        (15, 0.975, 2.1314),
        (31, 0.975, 2.0395),
        (99, 0.975, 1.9842),
        (1000, 0.975, 1.9623),
        (5, 0.95, 2.0150),
        (10, 0.995, 3.1693),
        (4, 0.5, 0.0),
    ],
)
def test_table(degrees, probability, expected):
    assert student_t_quantile(probability, degrees) == pytest.approx(expected, abs=5e-5)


def test_the_distribution_is_symmetric_and_inverse_to_its_quantiles():
    for degrees in (1, 6, 50):
        for probability in (0.6, 0.9, 0.999):
            t = student_t_quantile(probability, degrees)
            assert student_t_cdf(t, degrees) == pytest.approx(probability, abs=1e-9)
            assert student_t_cdf(-t, degrees) == pytest.approx(1 - probability, abs=1e-9)


def test_how_probable_a_share_is_among_equals():
    # the lady who tastes tea, Fisher 1935
    assert excess_probability(3, 4, 1, 4) == pytest.approx((4 * 4 + 1) / 70)
    assert excess_probability(0, 5, 3, 5) == pytest.approx(1.0)
    assert excess_probability(2, 2, 0, 0) == pytest.approx(1.0)  # there is no other to compare with
