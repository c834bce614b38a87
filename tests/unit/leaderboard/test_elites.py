"""Statistics whose arithmetic can be followed."""

from __future__ import annotations

import math

import pytest

from podracer_core.catalogue import Choice, Fixed, Interval, Range
from podracer_core.evolution import RoundResult, elite_statistics, lineage_statistics

RANGES: dict[str, Range] = {
    "learning_rate": Interval(1e-4, 1e-2, logarithmic=True),
    "clip_range": Interval(0.1, 0.3),
    "gamma": Fixed(0.99),
    "horizon": Choice((16, 32)),
}


def test_mean_and_covariance_of_three():
    elites = [
        {"learning_rate": 1e-4, "clip_range": 0.1, "gamma": 0.99, "horizon": 16},
        {"learning_rate": 1e-3, "clip_range": 0.2, "gamma": 0.99, "horizon": 16},
        {"learning_rate": 1e-2, "clip_range": 0.3, "gamma": 0.99, "horizon": 32},
    ]
    statistics = elite_statistics(elites, RANGES)
    assert statistics.names == ("clip_range", "learning_rate")
    assert statistics.logarithmic == (False, True)
    assert statistics.mean == pytest.approx((0.2, math.log(1e-3)))
    decade = math.log(10.0)
    # deviations (-0.1, 0, 0.1) and (-decade, 0, decade), divided by 3 - 1
    assert statistics.covariance[0] == pytest.approx((0.01, 0.1 * decade))
    assert statistics.covariance[1] == pytest.approx((0.1 * decade, decade**2))
    assert statistics.variance == pytest.approx((0.01, decade**2))
    assert statistics.count == 3


def test_of_one_the_covariance_is_zero_and_of_none_so_is_the_mean():
    one = elite_statistics([{"learning_rate": 1e-3, "clip_range": 0.2}], RANGES)
    assert one.covariance == ((0.0, 0.0), (0.0, 0.0))
    assert elite_statistics([], RANGES).mean == (0.0, 0.0)


def test_improvement_is_growth_for_each_device_second_of_the_last_three_rungs():
    rounds = [
        RoundResult("fast", "a1", 1, 10.0, 5.0),
        RoundResult("fast", "a1", 2, 20.0, 5.0),
        RoundResult("fast", "a1", 3, 40.0, 5.0),
        RoundResult("fast", "a2", 3, 35.0, 5.0),
        RoundResult("fast", "a2", 4, 70.0, 5.0),
        RoundResult("slow", "b1", 1, 50.0, 5.0),
        RoundResult("slow", "b1", 2, 55.0, 5.0),
        RoundResult("unjudged", "c1", 1, None, 5.0),
    ]
    fast, slow = lineage_statistics(rounds)
    # rungs 2, 3, 3 and 4 cost 20 s and took the best from 10 to 70
    assert (fast.lineage, fast.agent_count, fast.best_score, fast.cost_s) == ("fast", 2, 70.0, 25.0)
    assert fast.improvement == pytest.approx(60.0 / 20.0)
    # two rungs only: from the first judged one on
    assert (slow.lineage, slow.improvement, slow.cost_s) == ("slow", pytest.approx(1.0), 10.0)


def test_a_lineage_that_gets_worse_does_not_improve():
    (lineage,) = lineage_statistics(
        [RoundResult("a", "a1", 1, 9.0, 1.0), RoundResult("a", "a1", 2, 3.0, 1.0)]
    )
    assert (lineage.best_score, lineage.improvement) == (9.0, 0.0)
