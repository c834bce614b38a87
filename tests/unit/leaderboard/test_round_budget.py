"""Rounds are cut to what the job has left."""

from __future__ import annotations

from podracer_leaderboard.round_budget import Remaining, RoundBudget, round_budget
from podracer_leaderboard.rules import Rules

BY_STEPS = Rules(round_env_steps=1000, round_time_s=0.0)
BY_TIME = Rules(round_env_steps=0, round_time_s=15.0)


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
