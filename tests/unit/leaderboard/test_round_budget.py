"""Rounds follow the promise of their agents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.evolution import (
    Remaining,
    RoundBudget,
    Rules,
    agent_stretch,
    cohort_stretch,
    round_budget,
)
from podracer_core.sections import Round

BY_STEPS = Rules(round=Round(env_steps=1000))
BY_TIME = Rules(round=Round(seconds=15.0))


def test_it_is_what_the_job_wants_and_longer_for_agents_that_improve():
    assert round_budget(BY_STEPS) == RoundBudget(1000, 0.0)
    assert round_budget(BY_TIME) == RoundBudget(0, 15.0)
    assert round_budget(BY_STEPS, 2.5) == RoundBudget(2500, 0.0)
    assert round_budget(BY_TIME, 4.0) == RoundBudget(0, 60.0)


def test_nothing_left_and_too_little_for_all():
    assert Remaining(env_steps=0).is_nothing
    assert Remaining(cost_s=0.0).is_nothing
    assert not Remaining().is_nothing
    assert Remaining(env_steps=3).places(8) == 3
    assert Remaining().places(8) == 8


@pytest.mark.parametrize(
    ("curve", "times"),
    [
        ([], 1.0),
        ([5.0], 1.0),  # nothing to be better than
        ([5.0, 6.0], 2.0),
        ([5.0, 6.0, 7.0], 4.0),
        ([5.0, 6.0, 7.0, 8.0, 9.0], 4.0),  # bounded
        ([5.0, 5.0, 5.0], 1.0),
        ([5.0, 9.0, 6.0, 8.0], 1.0),  # not above what it has already had
        ([9.0, 5.0, 6.0, 10.0], 2.0),
    ],
)
def test_records_in_a_row_double_a_round(curve, times):
    assert agent_stretch(curve) == times


def test_a_cohort_trains_for_the_mean_of_what_its_members_deserve():
    assert cohort_stretch([[1.0, 2.0, 3.0], [3.0, 2.0], [], [1.0, 2.0]]) == (4 + 1 + 1 + 2) / 4
    assert cohort_stretch([]) == 1.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), min_size=1, max_size=8))
def test_a_round_is_never_shorter_and_at_most_four_times_as_long(curves):
    assert 1.0 <= cohort_stretch(curves) <= 4.0
