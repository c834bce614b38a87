"""Who enters the board, who leaves it, and in which order they stand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.evolution import Entry, admission_score, admit, claims_first, ranked


def entry(
    agent: str,
    score: float,
    lineage: str = "",
    mean: float = 0.0,
    order: int = 0,
    *,
    confirmed: bool = False,
) -> Entry:
    return Entry(agent, lineage or agent, score, mean, order, confirmed)


FULL = [entry("a", 4.0), entry("b", 3.0), entry("c", 2.0)]


def test_there_is_room():
    admission = admit(FULL, entry("d", 3.5), size=4, lineage_limit=2)
    assert (admission.is_admitted, admission.rank, admission.removed) == (True, 2, ())


def test_a_better_one_takes_the_place_of_the_worst():
    admission = admit(FULL, entry("d", 5.0), size=3, lineage_limit=2)
    assert (admission.rank, [former.agent for former in admission.removed]) == (1, ["c"])


def test_an_equal_one_stays_outside():
    admission = admit(FULL, entry("d", 2.0), size=3, lineage_limit=2)
    assert not admission.is_admitted
    assert "2 against 2 of the worst of a full board" in admission.reason


def test_an_equal_bound_with_a_better_mean_enters():
    assert admit(FULL, entry("d", 2.0, mean=1.0), size=3, lineage_limit=2).rank == 3


def test_an_agent_has_one_place_and_only_its_best():
    assert not admit(FULL, entry("b", 2.5), size=4, lineage_limit=2).is_admitted
    better = admit(FULL, entry("b", 6.0), size=4, lineage_limit=2)
    assert (better.rank, [former.score for former in better.removed]) == (1, [3.0])


def test_a_lineage_has_its_limit():
    board = [entry("a1", 9.0, "a"), entry("a2", 8.0, "a")]
    assert not admit(board, entry("a3", 7.0, "a"), size=4, lineage_limit=2).is_admitted
    admission = admit(board, entry("a3", 8.5, "a"), size=4, lineage_limit=2)
    assert (admission.rank, [former.agent for former in admission.removed]) == (2, ["a2"])
    assert admit(board, entry("b", 1.0, "b"), size=4, lineage_limit=2).rank == 3


def test_of_equal_ones_the_earlier_stands_first():
    board = [
        entry("late", 1.0, order=7),
        entry("early", 1.0, order=3),
        entry("mean", 1.0, mean=2.0, order=9),
    ]
    assert [each.agent for each in ranked(board)] == ["mean", "early", "late"]


def test_what_it_takes_to_enter():
    assert admission_score(FULL, size=4) is None
    assert admission_score(FULL, size=3) == 2.0


def names(board: list[Entry]) -> list[str]:
    return [each.agent for each in board]


def test_the_first_place_is_the_best_confirmed_ones():
    lucky = entry("lucky", 9.0)
    good = entry("good", 8.0)
    known = entry("known", 5.0)
    sure = entry("sure", 7.0)
    assert names(ranked([good, known, lucky, sure])) == ["lucky", "good", "sure", "known"]
    known, sure = (dataclasses.replace(each, confirmed=True) for each in (known, sure))
    assert names(ranked([good, known, lucky])) == ["known", "lucky", "good"]
    assert names(ranked([good, known, lucky, sure])) == ["sure", "lucky", "good", "known"]


def test_who_has_the_best_score_claims_the_first_place_until_it_is_confirmed():
    board = [entry("known", 5.0, confirmed=True), entry("good", 8.0)]
    assert claims_first(board, entry("lucky", 9.0))
    assert claims_first([], entry("only", 1.0))
    assert claims_first([*board, entry("lucky", 7.0)], entry("lucky", 9.0)), (
        "its own place is no rival"
    )
    assert not claims_first(board, entry("fair", 6.0)), "another one claims it with more"
    assert not claims_first(board, entry("late", 8.0, order=1)), "of equal ones the earlier"
    assert not claims_first(board, entry("lucky", 9.0, confirmed=True)), "it has been confirmed"


def test_the_only_confirmed_one_gives_way_last():
    board = [entry("known", 5.0, confirmed=True), entry("good", 8.0)]
    admission = admit(board, entry("lucky", 9.0), size=2, lineage_limit=2)
    assert (admission.rank, names(list(admission.removed))) == (2, ["good"])
    assert not admit(board, entry("fair", 6.0), size=2, lineage_limit=2).is_admitted
    assert admission_score(board, size=2) == 8.0
    alone = admit(board[:1], entry("lucky", 9.0), size=1, lineage_limit=1)
    assert (alone.rank, names(list(alone.removed))) == (1, ["known"])


@pytest.mark.parametrize("score", [1.0, 6.5, 20.0])
def test_a_confirmed_one_comes_in_like_any_other(score):
    board = [entry("known", 5.0, confirmed=True), entry("good", 8.0)]
    rank = admit(board, entry("sure", score, confirmed=True), size=3, lineage_limit=2).rank
    assert rank == (1 if score > 5.0 else 3)


confirmations = st.lists(
    st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.booleans()), min_size=1, max_size=12
)


@given(confirmations)
def test_no_unconfirmed_one_stands_first_beside_a_confirmed_one(drawn):
    board = [
        Entry(f"a{order}", f"a{order}", score, mean, order, confirmed)
        for order, (score, mean, confirmed) in enumerate(drawn)
    ]
    ranking = ranked(board)
    assert ranking == ranked(reversed(board))
    assert sorted(names(ranking)) == sorted(names(board))
    confirmed = [each for each in ranking if each.confirmed]
    assert ranking[0].confirmed or not confirmed
    assert ranking[0].score == max(each.score for each in confirmed or board)
    rest = [(each.score, each.mean, -each.order) for each in ranking[1:]]
    assert rest == sorted(rest, reverse=True), "behind the first only the score counts"
    claims = [each for each in board if claims_first(board, each)]
    assert len(claims) <= 1
    for claim in claims:
        confirmed_now = [
            dataclasses.replace(each, confirmed=each.confirmed or each is claim) for each in board
        ]
        assert ranked(confirmed_now)[0].agent == claim.agent, "confirmed as it is, it is first"


submissions = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 3), st.floats(-100, 100)), min_size=1, max_size=60
)


@given(submissions, st.integers(1, 6), st.integers(1, 6))
def test_any_history_keeps_the_board_in_its_limits_and_never_loses_the_best(history, size, limit):
    board: list[Entry] = []
    best = float("-inf")
    for order, (agent, lineage, score) in enumerate(history):
        candidate = Entry(f"{lineage}-{agent}", str(lineage), score, score, order)
        admission = admit(board, candidate, size, limit)
        if admission.is_admitted:
            board = [each for each in board if each not in admission.removed] + [candidate]
            assert ranked(board)[admission.rank - 1] is candidate
        best = max(best, score)
        assert max(each.score for each in board) == best
        assert len(board) <= size
        assert len({each.agent for each in board}) == len(board)
        lineages = [each.lineage for each in board]
        assert all(lineages.count(each) <= limit for each in lineages)
