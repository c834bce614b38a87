"""Who is judged against whom, and who gives way: worked examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.evolution import (
    Front,
    LineRound,
    Rules,
    fraction_at_stake,
    is_at_bottom,
    peer_scores,
    shrunken,
)
from podracer_core.sections import Round

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def bottom(rung: list[float], fraction: float = 0.25) -> list[float]:
    return [score for score in rung if is_at_bottom(score, rung, fraction)]


def ended(
    agent: str, after: float, score: float, before: float = 0.0, reached: float = 0.0
) -> LineRound:
    return LineRound(agent, before, after, score, reached)


def test_the_worst_quarter_gives_way():
    assert bottom([5.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0]) == [1.0, 2.0]


def test_a_quarter_of_four_is_one_and_of_seven_still_one():
    assert bottom([1.0, 2.0, 3.0, 4.0]) == [1.0]
    assert bottom([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == [1.0]


def test_three_are_too_few_to_judge():
    assert bottom([1.0, 2.0, 3.0]) == []


def test_equal_scores_never_give_way():
    assert bottom([3.0] * 8) == []
    assert bottom([1.0, 1.0, 1.0, 4.0]) == []


def test_a_fraction_of_zero_replaces_none_and_of_one_all_but_the_best():
    assert bottom([1.0, 2.0, 3.0, 4.0], 0.0) == []
    assert bottom([1.0, 2.0, 3.0, 4.0], 1.0) == [1.0, 2.0, 3.0]


@given(scores, st.floats(0.0, 1.0))
def test_never_more_than_the_fraction_and_never_the_best(rung, fraction):
    replaced = bottom(rung, fraction)
    assert len(replaced) <= fraction * len(rung)
    assert max(rung) not in replaced
    assert all(
        score > max(replaced, default=float("-inf")) for score in rung if score not in replaced
    )


def test_a_line_has_one_score_in_a_rung_that_of_its_round_nearest_to_here():
    others = [
        ended("b", 110.0, 5.0, reached=110.0),
        ended("c", 102.0, 3.0, reached=102.0),
        ended("b", 96.0, 4.0, reached=110.0),
        ended("b", 76.0, 2.0, reached=110.0),
    ]
    assert peer_scores(ended("a", 100.0, 1.0), others) == (1.0, 4.0, 3.0)


def test_an_agent_is_not_held_against_those_that_had_more():
    others = [ended(name, 125.0, 99.0) for name in "bcdef"] + [ended("g", 100.0, 2.0)]
    assert peer_scores(ended("a", 100.0, 1.0), others) == (1.0, 2.0)


def test_who_went_on_is_judged_by_what_it_had_reached_here():
    others = [ended("b", 80.0, 7.0, reached=500.0), ended("c", 80.0, 8.0, reached=99.0)]
    same = [ended(name, 100.0, 5.0) for name in "defg"]
    assert peer_scores(ended("a", 100.0, 1.0), [*same, *others]) == (
        1.0,
        5.0,
        5.0,
        5.0,
        5.0,
        7.0,
        8.0,
    )


def test_losers_of_lower_rungs_do_not_make_anyone_look_good():
    losers = [ended(name, 90.0, -50.0) for name in "fghijk"]
    peers = peer_scores(
        ended("a", 100.0, 1.0), [*(ended(name, 100.0, 5.0) for name in "bcde"), *losers]
    )
    assert peers == (1.0, 5.0, 5.0, 5.0, 5.0)
    assert is_at_bottom(1.0, peers, 0.25)


def test_a_full_rung_is_judged_by_itself():
    same = [ended(name, 98.0, 5.0) for name in "bcd"]
    assert peer_scores(ended("a", 100.0, 1.0), [*same, ended("e", 50.0, 9.0)]) == (
        1.0,
        5.0,
        5.0,
        5.0,
    )


def test_who_leads_alone_is_held_against_the_nearest_with_less_training():
    others = [
        ended("b", 60.0, 2.0),
        ended("c", 40.0, 3.0),
        ended("c", 20.0, 7.0),
        ended("d", 10.0, 4.0),
    ]
    assert peer_scores(ended("a", 100.0, 1.0), [*others, ended("e", 5.0, 8.0)]) == (
        1.0,
        2.0,
        3.0,
        4.0,
    )


def test_its_own_earlier_rounds_are_no_peers():
    assert peer_scores(ended("a", 100.0, 1.0), [ended("a", 90.0, 9.0), ended("a", 50.0, 9.0)]) == (
        1.0,
    )


ADAPTIVE = Rules(round=Round(env_steps=100), adaptive_rounds=True)


def milestones(rules: Rules, length: float, rounds: int, least: float = 0.5) -> list[int]:
    """After which of some rounds of equal `length` at least half of the rung is at stake, or
    another part."""
    curves = [
        [ended("a", length * count, 1.0, before=length * (count - 1))]
        for count in range(1, rounds + 1)
    ]
    return [
        count
        for count, curve in enumerate(curves, start=1)
        if fraction_at_stake(rules, curve) >= least
    ]


def test_milestones_are_efforts_that_double():
    assert milestones(ADAPTIVE, 100.0, 17) == [1, 2, 4, 8, 16]


def test_members_that_share_the_seconds_of_a_pod_pass_the_first_after_several_rounds():
    timed = Rules(round=Round(seconds=15.0), adaptive_rounds=True)
    assert milestones(timed, 15.0 / 8, 33) == [8, 16, 32]
    assert milestones(timed, 14.8, 5) == [1, 2, 4], "timed rounds differ a little"


def test_they_are_judged_when_each_has_had_another_whole_round():
    assert milestones(Rules(round=Round(seconds=15.0)), 15.0 / 4, 16, least=0.25) == [4, 8, 12, 16]
    assert milestones(Rules(round=Round(seconds=15.0)), 15.0, 5, least=0.25) == [1, 2, 3, 4, 5]


def test_no_agent_gives_way_in_the_first_third_of_the_budget_unless_it_has_had_ten_rounds():
    def at_stake(rounds: int, budget_used: float) -> float:
        curve = [ended("a", 100.0 * rounds, 1.0, before=100.0 * (rounds - 1))]
        return fraction_at_stake(Rules(round=Round(env_steps=100)), curve, budget_used)

    assert [at_stake(3, 0.33), at_stake(3, 0.34), at_stake(9, 0.1), at_stake(10, 0.1)] == [
        0.0,
        0.25,
        0.0,
        0.25,
    ]


def test_a_boundary_that_was_passed_in_a_round_that_nothing_judged_counts_in_the_next():
    curve = [ended("a", 90.0, 1.0), ended("a", 130.0, 1.0, before=110.0)]
    assert fraction_at_stake(ADAPTIVE, curve) == 0.5
    assert fraction_at_stake(ADAPTIVE, [*curve, ended("a", 170.0, 1.0, before=150.0)]) == 0.0


def test_a_long_round_passes_all_that_it_steps_over_once():
    assert fraction_at_stake(ADAPTIVE, [ended("a", 900.0, 1.0, before=150.0)]) == 0.5
    assert fraction_at_stake(ADAPTIVE, [ended("a", 1500.0, 1.0, before=900.0)]) == 0.25


@pytest.mark.parametrize("curve", [[], [ended("a", 100.0, 1.0)]])
def test_without_adaptive_rounds_there_are_none(curve):
    assert fraction_at_stake(Rules(round=Round(env_steps=100)), curve) == 0.25


def test_a_job_that_replaces_more_than_half_still_does():
    greedy = Rules(round=Round(env_steps=100), adaptive_rounds=True, replaced_fraction=0.75)
    assert fraction_at_stake(greedy, [ended("a", 100.0, 1.0)]) == 0.75


@pytest.mark.parametrize(
    ("reached", "best_since", "stagnates"),
    [(399.0, 200.0, False), (400.0, 200.0, True), (199.0, 1.0, False), (200.0, 1.0, True)],
)
def test_lines_stagnate_once_effort_has_doubled_without_a_better_score(
    reached, best_since, stagnates
):
    assert Front(reached, best_since).stagnates(ADAPTIVE) is stagnates, (
        "never before the first milestone has doubled"
    )


def judged(*rounds: tuple[float, int, float]) -> list[LineRound]:
    return [
        LineRound(str(number), 0.0, 1.0, score, episodes=episodes, variance=variance)
        for number, (score, episodes, variance) in enumerate(rounds)
    ]


def test_few_episodes_are_drawn_further_to_the_rungs_mean():
    """As the two scores in tests/unit/evaluate/test_shrinkage.py, worked by hand there."""
    assert shrunken(judged((0.0, 8, 100.0), (20.0, 32, 100.0))) == pytest.approx([0.625, 19.84375])


def test_an_agent_with_eight_episodes_is_not_last_for_a_difference_that_is_noise():
    """The scores vary by 26 / 3, less than their errors of 21.9, so τ² is the least, 12.5: a fifth
    of the way for 8, half for 32, from 39.2 / 3.4, where each score weighs 1 / (12.5 + its
    error)."""
    middle = 39.2 / 3.4
    rung = shrunken(judged((8.0, 8, 400.0), (9.0, 32, 400.0), (13.0, 32, 400.0), (14.0, 32, 400.0)))
    assert rung == pytest.approx(
        [middle + (8 - middle) / 5, *((middle + each) / 2 for each in (9, 13, 14))]
    )
    assert [is_at_bottom(score, rung, 0.25) for score in rung] == [False, True, False, False]


def test_equal_numbers_of_episodes_and_scores_without_error_stay_as_they_are():
    assert shrunken(judged((1.0, 8, 400.0), (2.0, 8, 100.0))) == (1.0, 2.0)
    assert shrunken(judged((1.0, 1, 0.0), (2.0, 32, 0.0))) == (1.0, 2.0)
    assert shrunken(judged((1.0, 8, 4.0))) == (1.0,)
