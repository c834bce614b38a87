"""Collecting ahead where it pays."""

from __future__ import annotations

import pytest

from podracer_learner.pace_trial import PaceTrial


def tried(wait_s: float, training_s: float, rollouts: int = 20, ahead: int | None = None) -> list[int]:
    """After each of some rollouts: how many to collect ahead."""
    now = [0.0]
    trial = PaceTrial(ahead, lambda: now[0])
    decisions = []
    for _ in range(rollouts):
        trial.wait()
        now[0] += wait_s
        trial.go_on()
        decisions.append(trial.ahead)
        now[0] += training_s
    return decisions


@pytest.mark.parametrize(
    ("wait_s", "training_s", "expected"),
    [(1.0, 1.0, 1), (1.0, 2.0, 1), (2.0, 1.0, 2), (1.0, 9.0, 0), (9.0, 1.0, 0)],
)
def test_it_pays_where_both_take_about_as_long(wait_s: float, training_s: float, expected: int) -> None:
    assert tried(wait_s, training_s)[-1] == expected


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_who_is_told_does_not_try(ahead: int) -> None:
    assert set(tried(1.0, 1.0, ahead=ahead)) == {ahead}


def test_the_first_rollouts_are_always_in_lock_step() -> None:
    assert tried(1.0, 1.0)[:11] == [0] * 11


def test_a_slow_start_is_not_held_against_it() -> None:
    now = [0.0]
    trial = PaceTrial(None, lambda: now[0])
    for index in range(20):
        trial.wait()
        now[0] += 100.0 if index < 2 else 1.0
        trial.go_on()
        now[0] += 1.0
    assert trial.ahead == 1
