"""Who gives way in a rung: worked examples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from podracer_leaderboard.rungs import is_at_bottom, peer_scores

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def bottom(rung: list[float], fraction: float = 0.25) -> list[float]:
    return [score for score in rung if is_at_bottom(score, rung, fraction)]


def test_the_worst_quarter_gives_way() -> None:
    assert bottom([5.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0]) == [1.0, 2.0]


def test_a_quarter_of_four_is_one_and_of_seven_still_one() -> None:
    assert bottom([1.0, 2.0, 3.0, 4.0]) == [1.0]
    assert bottom([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == [1.0]


def test_three_are_too_few_to_judge() -> None:
    assert bottom([1.0, 2.0, 3.0]) == []


def test_equal_scores_never_give_way() -> None:
    assert bottom([3.0] * 8) == []
    assert bottom([1.0, 1.0, 1.0, 4.0]) == []


def test_a_fraction_of_zero_replaces_nobody_and_of_one_all_but_the_best() -> None:
    assert bottom([1.0, 2.0, 3.0, 4.0], 0.0) == []
    assert bottom([1.0, 2.0, 3.0, 4.0], 1.0) == [1.0, 2.0, 3.0]


def test_a_full_rung_is_judged_by_itself() -> None:
    assert peer_scores(3, {3: (1.0, 2.0, 3.0, 4.0), 2: (9.0,)}) == [1.0, 2.0, 3.0, 4.0]


def test_who_leads_alone_is_held_against_those_with_less_training() -> None:
    assert peer_scores(3, {4: (99.0,), 3: (1.0,), 2: (2.0, 3.0), 1: (4.0, 5.0), 0: (6.0,)}) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_nobody_is_held_against_those_with_more() -> None:
    assert peer_scores(1, {1: (1.0,), 2: (2.0,) * 8}) == [1.0]


@given(scores, st.floats(0.0, 1.0))
def test_never_more_than_the_fraction_and_never_the_best(rung: list[float], fraction: float) -> None:
    replaced = bottom(rung, fraction)
    assert len(replaced) <= fraction * len(rung)
    assert max(rung) not in replaced
    assert all(score > max(replaced, default=float("-inf")) for score in rung if score not in replaced)
