"""Whether the best of many policies has an edge over holding: figures worked on paper, and
simulated searches."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from podracer_core.errors import InvalidInput
from podracer_trading.backtest import (
    Edge,
    edge_over_holding,
    expected_maximum,
    independent_trials,
)
from podracer_trading.client import validation_text

NONE = np.zeros((0, 400))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        # 0.42278 · Q(0.9) + 0.57722 · Q(0.963212) = 0.42278 · 1.28155 + 0.57722 · 1.78920
        (10, 1.57457),
        # 0.42278 · Q(0.99) + 0.57722 · Q(0.9963212) = 0.42278 · 2.32635 + 0.57722 · 2.68018
        (100, 2.53060),
    ],
)
def test_the_expected_maximum_on_paper(count, expected):
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-4)


def test_it_never_falls_below_that_of_one():
    counts = np.linspace(1.0, 3.0, 50)
    assert sorted(found := [expected_maximum(count) for count in counts]) == found
    assert found[0] == 0.0


def test_independent_trials_on_paper():
    """Three series of which two are equal and one correlates with none: the average correlation is
    1 / 3."""
    first, second = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    assert independent_trials(np.stack([first, first, second]), 31) == pytest.approx(
        1 / 3 + 2 / 3 * 31
    )
    assert independent_trials(np.stack([first, first]), 31) == 1.0, "as good as one"
    assert independent_trials(np.stack([first, -first]), 31) == 31.0, "never more than all"
    assert independent_trials(first[None], 31) == 31.0, "nothing is known of the others"
    assert independent_trials(np.stack([first, 0 * first]), 31) == 31.0, "one that holds"


def test_a_search_on_paper():
    """Excess returns of +3 and -1 ‰ in turn: mean 1 ‰, no skewness, kurtosis 1, and no days that
    resemble those before them. The standard error is then that of independent normal returns."""
    days = 400
    excess = np.where(np.arange(days) % 2, -0.001, 0.003)
    holding = np.random.default_rng(0).normal(0.0005, 0.01, days)
    deviation = 0.002 * math.sqrt(days / (days - 1))
    found = edge_over_holding(holding + excess, holding, NONE, 1)
    assert found.excess_sharpe_ratio == pytest.approx(0.001 / deviation * math.sqrt(252))
    assert (found.trials, found.independent_trials, found.luck_sharpe_ratio) == (1, 1.0, 0.0)
    assert found.p_value == pytest.approx(
        1 - NormalDist().cdf(0.001 / deviation * math.sqrt(days - 1)), abs=1e-12
    )
    assert found.is_there
    weaker = excess - 0.00079  # 0.21 ‰ a day: z = 0.105 · √399 = 2.1
    alone, among = (
        edge_over_holding(holding + weaker, holding, NONE, trials) for trials in (1, 10)
    )
    assert alone.p_value == pytest.approx(0.018, abs=1e-3)
    assert among.p_value == pytest.approx(1 - (1 - alone.p_value) ** 10)
    assert among.luck_sharpe_ratio == pytest.approx(1.57457 * math.sqrt(252 / 399), abs=1e-4)
    assert (alone.is_there, among.is_there) == (True, False), "the best of ten is as good by chance"


def test_skewness_and_dependence_widen_the_standard_error():
    generator = np.random.default_rng(3)
    plain = generator.standard_normal(1000)
    skewed = 1.0 - generator.exponential(size=1000)
    slow = np.convolve(generator.standard_normal(1010), np.ones(5), "valid")[:1000]
    p_values = []
    for series in (plain, skewed, slow):
        series = (series - series.mean()) / series.std() + 0.08
        p_values.append(
            edge_over_holding(0.01 * series, 0 * series, np.zeros((0, 1000)), 1).p_value
        )
    assert p_values[0] < p_values[1] < p_values[2]
    assert p_values[2] > 0.05 > p_values[0]


def test_what_holds_has_no_edge():
    holding = np.random.default_rng(0).normal(0.001, 0.01, 100)
    found = edge_over_holding(holding, holding, holding[None], 7)
    assert (found.excess_sharpe_ratio, found.is_there) == (0.0, False)
    # A policy that loses every day: F(z) is 0, not a number too small for its logarithm.
    assert (
        edge_over_holding(holding - 0.5 - 1e-6 * holding, holding, holding[None], 7).p_value == 1.0
    )


@pytest.mark.parametrize(("days", "others"), [(19, 19), (100, 99)])
def test_too_few_days_and_other_days_are_refused(days, others):
    with pytest.raises(InvalidInput, match="shows in 20"):
        edge_over_holding(np.zeros(days), np.zeros(days), np.zeros((2, others)), 3)


def test_the_best_of_many_without_an_edge_is_seldom_called_one():
    """At 5 %, 3 of 60 searches; the correlated ones have an average correlation of 0.5. Without
    regard to the number of trials more than half would be."""
    generator = np.random.default_rng(7)
    for common in (0.0, 1.0):
        false = 0
        for _ in range(60):
            trials = generator.standard_normal((16, 120)) + common * generator.standard_normal(120)
            trials = trials[np.argsort(-trials.mean(axis=1) / trials.std(axis=1))]
            false += edge_over_holding(trials[0], np.zeros(120), trials[1:], 16).is_there
        assert 1 <= false <= 7


def test_as_text():
    none = Edge(0.42, 60, 17.2, 0.9, 0.714)
    assert validation_text(none) == (
        "excess over holding, Sharpe ratio 0.42; the best of about 17 independent trials without "
        "an edge has 0.90: no edge over holding (p = 0.71)"
    )
    text = validation_text(Edge(3.1, 1, 1.0, 0.0, 0.0))
    assert text.endswith(
        "; a single trial without an edge has 0.00: an edge over holding (p < 0.001)"
    )
    assert validation_text("none: because") == "none: because"
