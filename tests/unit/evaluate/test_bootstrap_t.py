"""The bootstrap-t bound, worked by hand where there are few enough resamples."""

from __future__ import annotations

import math

import pytest

from podracer_core.statistics import bootstrap_t_lower_bound, student_t_quantile


def test_the_bound_of_two_values_worked_by_hand():
    """The error is 10. A quarter of the resamples is twice 110: 10 above, with an error of half of
    10 at least, which makes 2. Student's t for one degree is tan(π (1/2 - level)): 1.376 at 20 %,
    0.727 at 30 %, where half is 0."""
    assert bootstrap_t_lower_bound((90.0, 110.0), 0.2, seed=1) == pytest.approx(100 - 2 * 10)
    assert bootstrap_t_lower_bound((90.0, 110.0), 0.3, seed=1) == pytest.approx(
        100 - 10 * math.tan(0.2 * math.pi)
    )


def test_the_bound_is_further_off_where_a_few_low_values_may_be_missing():
    low, high = (0.0,) * 3 + (10.0,) * 97, (10.0,) * 3 + (0.0,) * 97
    assert 9.7 - bootstrap_t_lower_bound(low, 0.03, 1) > 1.5 * (
        0.3 - bootstrap_t_lower_bound(high, 0.03, 1)
    )


def test_a_seed_always_gives_the_same_bound_and_equal_values_leave_no_doubt():
    values = tuple(float(number % 17) for number in range(100))
    assert (
        len({bootstrap_t_lower_bound.__wrapped__(values, 0.01, seed) for seed in (1, 2, 3, 3)}) == 3
    )
    assert bootstrap_t_lower_bound((500.0,) * 100, 0.01, 1) == 500.0


def test_a_level_that_resamples_cannot_tell_is_as_much_wider_than_student_s_t_as_the_least_that_they_can():
    values = (0.0,) * 10 + (10.0,) * 90
    told, beyond = (
        (9.0 - bootstrap_t_lower_bound(values, level, 1)) / student_t_quantile(1.0 - level, 99)
        for level in (1e-3, 1e-8)
    )
    assert beyond == pytest.approx(told)
    assert told > 3.0 / math.sqrt(99), "wider than Student's: the low values are few"
