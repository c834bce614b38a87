"""Which environments each worker has: all of them, each once, in proportion to what it does in a
second."""

from __future__ import annotations

import pytest

from podracer_learner.workers import consecutive, is_worth_moving, shares


@pytest.mark.parametrize("environments", [1, 2, 7, 16, 100])
@pytest.mark.parametrize(
    "rates", [[None], [None, None], [3.0, 1.0, None], [1e-9, 1e9], [0.0, 2.0], [1.0] * 7]
)
def test_every_environment_has_one_worker_and_every_worker_one_environment(environments, rates):
    if len(rates) > environments:
        with pytest.raises(ValueError, match="shared"):
            shares(environments, rates)
        return
    counts = shares(environments, rates)
    assert min(counts) >= 1
    covered = [first + index for first, count in consecutive(counts) for index in range(count)]
    assert covered == list(range(environments))


@pytest.mark.parametrize(
    ("environments", "rates", "expected"),
    [
        (16, [None, None], [8, 8]),
        (16, [None, None, None], [6, 5, 5]),
        (16, [10.0, 1.0], [14, 2]),  # one each, and 14 more as 10 to 1: 12.7 and 1.3
        (16, [3.0, None, 1.0], [8, 5, 3]),  # who is not known is taken for the mean: 3 : 2 : 1
        (2, [100.0, 1.0], [1, 1]),
        (3, [], None),
    ],
)
def test_shares_follow_the_rates(environments, rates, expected):
    if expected is None:
        with pytest.raises(ValueError, match="0 workers"):
            shares(environments, rates)
    else:
        assert shares(environments, rates) == expected


def test_parts_follow_one_another():
    assert consecutive([6, 5, 5]) == [(0, 6), (6, 5), (11, 5)]


@pytest.mark.parametrize(
    ("counts", "rates", "worth"),
    [
        ([8, 8], [10.0, 1.0], True),  # 8 s -> 2 s
        ([8, 8], [1.0, 1.2], False),
        ([8, 8], [2.0, 1.0], False),  # 8 s -> 5 or 6 s: not enough for new episodes
        ([14, 2], [10.0, 1.0], False),  # it is so already
        ([8, 8], [10.0, None], False),
    ],
)
def test_moving_is_worth_it_where_the_slowest_is_done_much_sooner(counts, rates, worth):
    assert is_worth_moving(counts, rates, shares(sum(counts), rates)) is worth
