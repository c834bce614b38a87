"""Budgets by hand."""

from __future__ import annotations

import pytest

from podracer_orchestrator.jobs import (
    Budget,
    BudgetSplit,
    Grant,
    Remainder,
    RoundLimits,
    Usage,
    cut_round,
    remainder,
    used_part,
)

UNLIMITED = Remainder(None, None, None)


def test_the_remainder_leaves_out_what_is_used_and_what_is_reserved():
    used = Usage(
        env_steps=100, active_time_s=4.0, cost_s=8.0, reserved_env_steps=300, reserved_cost_s=5.0
    )
    assert remainder(Budget(1000, 10.0, 20.0), used) == Remainder(600, 6.0, 7.0)
    assert remainder(Budget(), used) == UNLIMITED
    assert remainder(Budget(350, 3.0, 10.0), used) == Remainder(0, 0.0, 0.0)
    assert remainder(Budget(None, 4.039, 13.25), used) == Remainder(None, 0.0, 0.25), (
        "a hundredth is nothing"
    )


def test_the_part_that_is_used_is_that_of_the_scarcest_limit():
    used = Usage(
        env_steps=100, active_time_s=4.0, cost_s=8.0, reserved_env_steps=300, reserved_cost_s=5.0
    )
    assert used_part(Budget(1000, 10.0, 32.0), used) == 0.4
    assert used_part(Budget(50), used) == 1.0, "a little more than everything"
    assert used_part(Budget(), used) is None


@pytest.mark.parametrize(
    "left", [Remainder(0, None, None), Remainder(None, 0.0, None), Remainder(5, 3.0, 0.0)]
)
def test_nothing_is_granted_where_anything_has_run_out(left):
    assert left.is_empty
    assert cut_round(RoundLimits(100), left, 2, BudgetSplit()) is None


def test_without_limits_the_round_is_granted_as_it_is():
    assert cut_round(RoundLimits(1000, 15.0), UNLIMITED, 4, BudgetSplit()) == Grant(
        RoundLimits(1000, 15.0)
    )


def test_a_round_of_steps_reserves_its_steps_and_is_cut_to_what_is_left():
    plenty = cut_round(RoundLimits(1000), Remainder(10_000, None, None), 4, BudgetSplit(teams=3))
    assert plenty == Grant(RoundLimits(1000), reserved_env_steps=4000)
    scarce = cut_round(RoundLimits(1000), Remainder(1000, None, None), 4, BudgetSplit(teams=3))
    assert scarce == Grant(RoundLimits(250), reserved_env_steps=1000, is_cut=True)
    assert (
        cut_round(
            RoundLimits(1000), Remainder(3, None, None), 4, BudgetSplit()
        ).round.member_env_steps
        == 1
    )


def test_a_round_of_seconds_takes_a_pods_share_of_the_steps():
    first = cut_round(RoundLimits(0, 15.0), Remainder(10_000, None, None), 4, BudgetSplit(teams=2))
    assert first == Grant(RoundLimits(1250, 15.0), reserved_env_steps=5000, is_cut=True)


def test_a_round_of_seconds_takes_no_more_than_twice_what_a_pod_does():
    grant = cut_round(
        RoundLimits(0, 15.0),
        Remainder(1_000_000, None, None),
        4,
        BudgetSplit(1, env_steps_per_second=100.0),
    )
    assert grant.reserved_env_steps == 3000  # 2 x 15 s x 100 steps/s


def test_time_and_cost_cut_the_seconds():
    assert cut_round(RoundLimits(0, 15.0), Remainder(None, 6.0, None), 1, BudgetSplit()) == Grant(
        RoundLimits(0, 6.0), is_cut=True
    )
    by_cost = cut_round(RoundLimits(0, 15.0), Remainder(None, None, 9.0), 1, BudgetSplit(teams=3))
    assert by_cost == Grant(RoundLimits(0, 15.0), reserved_cost_s=3.0, is_cut=True)
    shared = cut_round(RoundLimits(500), Remainder(None, None, 9.0), 1, BudgetSplit(teams=3))
    assert shared == Grant(RoundLimits(500), reserved_cost_s=3.0, is_cut=True)
    known = cut_round(
        RoundLimits(0, 15.0),
        Remainder(None, None, 900.0),
        1,
        BudgetSplit(teams=3, cost_per_second=2.0),
    )
    assert known == Grant(RoundLimits(0, 15.0), reserved_cost_s=60.0, is_cut=True)


def test_a_team_does_more_steps_and_shares_its_part_of_the_cost():
    split = BudgetSplit(teams=2, env_steps_per_second=100.0, learners=3)
    grant = cut_round(RoundLimits(0, 15.0), Remainder(1_000_000, None, None), 4, split)
    assert grant.reserved_env_steps == 9000  # 2 x 15 s x 3 x 100 steps/s, of 4 members 2250 each
    shared = cut_round(RoundLimits(500), Remainder(None, None, 12.0), 1, split)
    assert shared == Grant(RoundLimits(500), reserved_cost_s=2.0, is_cut=True)


def test_a_job_may_end_a_tenth_late_or_some_seconds():
    assert Budget(active_time_s=60.0).late_s == pytest.approx(6.0)
    assert Budget(active_time_s=600.0, cost_s=3000.0).late_s == pytest.approx(60.0)
    assert Budget(active_time_s=5.0).late_s == 6.0


def test_what_is_left_of_a_round_is_never_nothing():
    assert RoundLimits(1000, 15.0).after(400, 5.0) == RoundLimits(600, 10.0)
    assert RoundLimits(1000, 15.0).after(2000, 50.0) == RoundLimits(1, 0.1)
    assert RoundLimits(0, 15.0).after(2000, 5.0) == RoundLimits(0, 10.0)
