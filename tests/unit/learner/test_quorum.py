"""When a rollout goes on without those that have not answered."""

from __future__ import annotations

import math

import pytest

from podracer_learner.workers import Share, UsualDuration, has_quorum, remaining_wait_s

HERE, LOST = True, False


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([], math.inf),  # no learner is known yet
        ([Share(16, False, 2.0)], math.inf),
        ([Share(16, False, 0.0)], math.inf),  # lost, but without it there is nothing
        ([Share(16, HERE)], 0.0),
        ([Share(8, HERE), Share(8, HERE)], 0.0),
        ([Share(8, HERE), Share(8, False, 0.3)], 0.3),  # half have answered: the rest has its grace
        ([Share(8, HERE), Share(8, False, -1.0)], 0.0),
        ([Share(8, HERE), Share(8, LOST)], 0.0),  # a lost one is not waited for
        ([Share(7, HERE), Share(9, False, 0.3)], math.inf),  # less than half
        ([Share(7, HERE), Share(9, LOST)], math.inf),
        ([Share(6, HERE), Share(5, False, 0.1), Share(5, False, 0.4)], math.inf),
        ([Share(6, HERE), Share(5, HERE), Share(5, False, 0.4)], 0.4),
        ([Share(8, HERE), Share(4, False, 0.1), Share(4, False, 0.4)], 0.4),
    ],
)
def test_it_goes_on_with_half_of_the_environments_and_a_grace(shares, expected):
    assert remaining_wait_s(shares) == expected


def test_half_is_enough_but_none_is_not():
    assert [has_quorum(present, 7) for present in range(8)] == [False] * 4 + [True] * 4
    assert not has_quorum(0, 0)


def test_the_grace_is_three_times_what_is_usual():
    usual = UsualDuration()
    assert usual.grace_s == 10.0, "environments start"
    for duration_s in (1.0, 1.0, 50.0, 2.0, 1.0):
        usual.add(duration_s)
    assert usual.grace_s == 3.0, "one that was slow changes nothing"
    for _ in range(9):
        usual.add(0.01)
    assert usual.grace_s == 0.5, "never less: a process may be held up for a moment"
    usual.clear()
    assert usual.grace_s == 10.0
