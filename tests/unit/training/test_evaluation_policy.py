"""From a budget and known results to the next orders; evaluation keeps to its part of the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from podracer_core.random_numbers import ADMISSION, COMPARISON, CONFIRMATION
from podracer_core.training import (
    Budget,
    Contender,
    EvaluationCosts,
    EvaluationPolicy,
    Moment,
    RoundPlan,
)

EPISODES = 8  # of a look


def make_policy(
    *, target: float | None = None, members: int = 1, blocking: bool = True
) -> EvaluationPolicy:
    plan = RoundPlan(duration_s=15.0, target=target, episodes=32, screening_episodes=EPISODES)
    return EvaluationPolicy(plan, members, blocking=blocking)


def make_contender(mean: float, member: int = 0) -> Contender:
    snapshot: Any = SimpleNamespace(member=member)
    return Contender(mean, snapshot, None)


def spend(
    policy: EvaluationPolicy,
    until_s: float,
    cost_s: float,
    round_s: float | None = None,
    *,
    promising: bool = False,
) -> tuple[int, float]:
    """Train in steps of 10 ms, looking whenever it is due: how many looks, and what they cost."""
    looks, elapsed_s, looked_at_s = 0, 0.0, None
    while elapsed_s < until_s:
        elapsed_s += 0.01
        budget = Budget(
            0.2,
            elapsed_s,
            round_s,
            looks * cost_s,
            looked_at_s,
            cost_s / EPISODES,
            is_measured=True,
        )
        if policy.look(budget, promising=promising) == EPISODES:
            elapsed_s += cost_s
            looked_at_s, looks = elapsed_s, looks + 1
    return looks, looks * cost_s


def test_without_a_target_the_fraction_holds_at_every_moment_after_the_first_look():
    _, spent_s = spend(make_policy(), 100.0, 0.5)
    assert 0.19 * 100.0 <= spent_s <= 0.2 * 100.5


def test_over_a_round_of_known_length_the_fraction_holds_while_a_target_is_hunted():
    _, spent_s = spend(make_policy(target=9.0), 15.0, 0.2, 15.0, promising=True)
    assert spent_s <= 0.2 * 15.2


@pytest.mark.parametrize("target", [9.0, None])
@pytest.mark.parametrize("cost_s", [0.05, 0.4, 0.7])
def test_over_a_round_of_known_length_the_fraction_holds_with_what_its_end_costs(cost_s, target):
    looks, spent_s = spend(make_policy(target=target), 15.0, cost_s, 15.0)
    assert looks
    assert spent_s + 2 * cost_s <= 0.2 * 15.0 + 1e-9


def test_the_first_look_comes_at_once_where_it_is_cheap_and_late_where_it_is_dear():
    policy = make_policy(target=9.0)
    assert policy.look(Budget(0.2, 0.01, episode_s=0.3 / EPISODES), promising=False) == EPISODES
    assert not policy.look(Budget(0.2, 1.0, episode_s=10.0 / EPISODES), promising=False)
    assert policy.look(Budget(0.2, 45.1, episode_s=10.0 / EPISODES), promising=False) == EPISODES


def test_near_the_target_looks_come_more_often():
    policy = make_policy(target=9.0)
    assert spend(policy, 1.5, 0.1, promising=True) > spend(policy, 1.5, 0.1)


@pytest.mark.parametrize(
    ("first", "last", "promising"), [(0.0, 4.9, False), (0.0, 5.0, True), (None, 9.0, False)]
)
def test_half_of_the_way_to_the_target_is_promising(first, last, promising):
    assert make_policy(target=10.0).is_promising(first, last) == promising
    assert not make_policy().is_promising(first, last)


def test_the_last_look_has_half_of_the_seconds_that_are_left():
    """A fifth of 100 s less 8 s: 6 s pay for three episodes of two members at 1 s."""
    budget = Budget(0.2, 90.0, 100.0, 8.0, 80.0, 1.0, is_measured=True)
    assert make_policy(members=2).last_look(budget) == 3


def test_members_contenders_are_compared_while_the_candidates_are_paid_for_too():
    """48 s: two candidates of 32 s at 0.5 s an episode, and 8 episodes of each of four contenders,
    16 s."""
    ranked = [[make_contender(mean, member) for mean in (3.0, 2.0)] for member in (0, 1)]
    for round_s, compared in ((239.0, 1), (240.0, 2)):
        budget = Budget(0.2, 90.0, round_s, episode_s=0.5, is_measured=True)
        wanted = make_policy(members=2).comparisons(budget, ranked)
        assert [one.snapshot.member for one in wanted] == [0, 0, 1, 1][: 2 * compared]
        assert {(one.purpose, one.episodes) for one in wanted} == {(COMPARISON, EPISODES)}


def test_who_may_have_reached_the_target_is_confirmed_and_others_are_paid_for():
    """20 s: the first episodes of the other two are 16 s, and the first member's are not paid for
    at all."""
    best = [make_contender(mean, member) for member, mean in enumerate((9.0, 5.0, 4.0))]
    budget = Budget(0.2, 90.0, 100.0, episode_s=1.0, is_measured=True)
    policy = make_policy(target=9.0, members=3)
    wanted = [tuple(one) for one in policy.candidates(budget, best, lambda _: False)]
    assert wanted == [
        (best[0].snapshot, CONFIRMATION, 32),
        (best[1].snapshot, ADMISSION, EPISODES),
        (best[2].snapshot, ADMISSION, EPISODES),
    ]
    first = next(policy.candidates(budget, best, lambda _: True))
    assert tuple(first) == (best[0].snapshot, ADMISSION, EPISODES), (
        "it was evaluated, and has not reached it"
    )


def test_what_a_round_uses_is_expected_from_its_part_and_a_look_beside_training_is_free():
    plan = RoundPlan(duration_s=100.0)
    costs = EvaluationCosts(plan, 2, lambda: 16.0, beside=True)
    moment = Moment(25.0, [0, 0], 0, 50.0)
    assert costs.budget(moment).round_s == 200.0
    assert costs.budget(moment).episode_s == 1.0
    costs.record(50.0, 3.0, screening=True)
    costs.record(50.0, 4.0, screening=False)
    assert costs.budget(moment).spent_s == 4.0
    assert costs.budget(moment).looked_at_s == 50.0
