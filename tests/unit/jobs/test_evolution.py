"""What cannot be right in `evolution`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from podracer_core.sections import Checks, Evolution


def _problems(**keys: Any) -> list[tuple[str, str]]:
    check = Checks()
    Evolution(**keys).check(check)
    return [(violation.field, violation.message) for violation in check.violations]


@pytest.mark.parametrize(
    "keys",
    [
        {"scheduler": "generational"},
        {"scheduler": "generational", "generations": 1},
        {"selection": "truncation", "crossover": 1.0, "noise_scale": 0.5, "adaptive_rounds": True},
        {"generator": "search", "updater": "lower_bound"},
        {"generator": "My.generator-2"},
        {"ensemble_size": 2},
        {"ensemble_size": 4},
        {"population": 16, "leaderboard_size": 9, "ensemble_size": 9},
        {"population": 1},
    ],
)
def test_what_goes_together(keys):
    assert _problems(**keys) == []


@pytest.mark.parametrize(
    ("keys", "field", "problem"),
    [
        ({"generations": 5}, "generations", "write scheduler: generational"),
        (
            {"scheduler": "generational", "generations": 0},
            "generations",
            "expected 1 to 1_000_000, got 0",
        ),
        ({"crossover": 1.1}, "crossover", "expected 0.0 to 1.0, got 1.1"),
        ({"crossover": math.nan}, "crossover", "got nan"),
        ({"noise_scale": -0.1}, "noise_scale", "expected 0.0 to 1.0"),
        (
            {"ensemble_size": 1},
            "ensemble_size",
            "expected 0 for none, or 2 to 4, the places of the leaderboard; got 1",
        ),
        ({"ensemble_size": -1}, "ensemble_size", "2 to 4"),
        ({"leaderboard_size": 3, "ensemble_size": 4}, "ensemble_size", "2 to 3"),
        (
            {"population": 1, "ensemble_size": 2},
            "ensemble_size",
            "a leaderboard of one place has no ensemble",
        ),
        ({"generator": ""}, "generator", "expected the name of an installed generator, got ''"),
        ({"updater": "a b"}, "updater", "expected the name of an installed updater, got 'a b'"),
        ({"population": 3, "leaderboard_size": 4}, "leaderboard_size", "expected 1 to 3, got 4"),
    ],
)
def test_a_mistake_is_named_by_its_field(keys, field, problem):
    ((found, message),) = _problems(**keys)
    assert found == f"evolution.{field}"
    assert problem in message
