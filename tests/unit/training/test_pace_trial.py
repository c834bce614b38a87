"""Collecting ahead where it pays."""

from __future__ import annotations

import pytest

from podracer_core.training import PaceTrial


def tried(
    wait_s: float,
    training_s: float,
    rollouts: int = 30,
    ahead: int | None = None,
    hidden: float = 1.0,
    most: int = 2,
) -> list[int]:
    """After each of some rollouts: how many to collect ahead. `hidden`: of the shorter part, while
    one is."""
    now = [0.0]
    trial = PaceTrial(ahead, lambda: now[0], most)
    decisions = []
    for _ in range(rollouts):
        saved_s = hidden * min(wait_s, training_s) if trial.ahead else 0.0
        trial.wait()
        now[0] += wait_s - saved_s
        trial.go_on()
        decisions.append(trial.ahead)
        now[0] += training_s
    return decisions


@pytest.mark.parametrize(
    ("wait_s", "training_s", "expected"),
    [(1.0, 1.0, 1), (1.0, 2.0, 1), (2.0, 1.0, 2), (1.0, 9.0, 0), (9.0, 1.0, 0)],
)
def test_it_pays_where_both_take_about_as_long(wait_s, training_s, expected):
    assert tried(wait_s, training_s)[-1] == expected


def test_it_does_not_pay_where_both_then_take_longer():
    """Two processes on busy cores, or two streams of a device that one of them fills."""
    assert tried(1.0, 1.0, hidden=0.1)[11:24] == [1] * 12 + [0]
    assert tried(1.0, 1.0, hidden=0.3)[11:] == [1] * 19


def test_no_more_than_there_can_be():
    assert tried(2.0, 1.0, most=1)[-1] == 1
    assert tried(2.0, 1.0, ahead=2, most=1)[-1] == 1


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_who_is_told_does_not_try(ahead):
    assert set(tried(1.0, 1.0, ahead=ahead)) == {ahead}


def test_who_has_decided_does_not_look_at_the_clock():
    """Which may wait for a device."""

    def refuse() -> float:
        raise AssertionError("nothing is measured")

    trial = PaceTrial(1, refuse)
    trial.wait()
    trial.go_on()


def test_the_first_rollouts_are_always_in_lock_step():
    assert tried(1.0, 1.0)[:11] == [0] * 11


def test_a_slow_start_is_not_held_against_it():
    now = [0.0]
    trial = PaceTrial(None, lambda: now[0])
    for index in range(30):
        trial.wait()
        now[0] += 100.0 if index < 2 else 0.0 if trial.ahead else 1.0
        trial.go_on()
        now[0] += 1.0
    assert trial.ahead == 1
