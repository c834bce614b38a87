"""Delays double, stay bounded and are jittered."""

from __future__ import annotations

from itertools import islice

import pytest

from podracer_platform.rpc import Backoff


def test_ceilings_double_up_to_the_maximum():
    assert list(islice(Backoff(0.5, 3.0, jitter=0.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("jitter", "expected"), [(1.0, [0.25, 0.5, 1.0]), (0.5, [0.625, 1.25, 2.5])]
)
def test_jitter_takes_a_part_of_the_ceiling_away(jitter, expected):
    assert list(islice(Backoff(1.0, 4.0, jitter, uniform=lambda: 0.25), 3)) == expected


def test_attempts_bound_it_and_reset_starts_again():
    backoff = Backoff(1.0, 8.0, jitter=0.0, attempts=2)
    assert list(backoff) == [1.0, 2.0]
    assert list(backoff) == []
    backoff.reset()
    assert list(backoff) == [1.0, 2.0]


@pytest.mark.parametrize(
    "arguments", [(0.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 2.0, 1.5), (1.0, 2.0, -0.1)]
)
def test_impossible_settings(arguments):
    with pytest.raises(ValueError, match="expected"):
        Backoff(*arguments)
