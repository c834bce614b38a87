"""Rounds follow the promise of their agents, and are cut to what the job has left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.jobs.evolution import Round
from podracer_leaderboard.round_budget import Remaining, RoundBudget, agent_stretch, cohort_stretch, round_budget
from podracer_leaderboard.rules import Rules

BY_STEPS = Rules(round=Round(env_steps=1000))
BY_TIME = Rules(round=Round(seconds=15.0))


def test_without_a_limit_it_is_what_the_job_wants() -> None:
    assert round_budget(BY_STEPS, 4, Remaining()) == RoundBudget(1000, 0.0)
    assert round_budget(BY_TIME, 4, Remaining()) == RoundBudget(0, 15.0)


def test_steps_that_are_left_are_shared_by_the_members() -> None:
    assert round_budget(BY_STEPS, 4, Remaining(env_steps=3001)) == RoundBudget(750, 0.0)
    assert round_budget(BY_TIME, 4, Remaining(env_steps=3001)) == RoundBudget(750, 15.0)
    assert round_budget(BY_STEPS, 4, Remaining(env_steps=9000)) == RoundBudget(1000, 0.0)


def test_the_pod_may_take_all_seconds_because_its_members_share_them() -> None:
    assert round_budget(BY_TIME, 4, Remaining(cost_s=6.5)) == RoundBudget(0, 6.5)
    assert round_budget(BY_STEPS, 4, Remaining(cost_s=6.5)) == RoundBudget(1000, 6.5)


def test_nothing_left_and_too_little_for_all() -> None:
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
def test_records_in_a_row_double_a_round(curve: list[float], times: float) -> None:
    assert agent_stretch(curve) == times


def test_a_cohort_trains_for_the_mean_of_what_its_members_deserve() -> None:
    assert cohort_stretch([[1.0, 2.0, 3.0], [3.0, 2.0], [], [1.0, 2.0]]) == (4 + 1 + 1 + 2) / 4
    assert cohort_stretch([]) == 1.0


def test_a_longer_round_is_cut_to_what_is_left_as_any_other() -> None:
    assert round_budget(BY_STEPS, 4, Remaining(), 2.5) == RoundBudget(2500, 0.0)
    assert round_budget(BY_TIME, 4, Remaining(), 4.0) == RoundBudget(0, 60.0)
    assert round_budget(BY_TIME, 4, Remaining(cost_s=20.0), 4.0) == RoundBudget(0, 20.0)
    assert round_budget(BY_STEPS, 4, Remaining(env_steps=4004), 2.5) == RoundBudget(1001, 0.0)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), min_size=1, max_size=8))
def test_a_round_is_never_shorter_and_at_most_four_times_as_long(curves: list[list[float]]) -> None:
    assert 1.0 <= cohort_stretch(curves) <= 4.0
