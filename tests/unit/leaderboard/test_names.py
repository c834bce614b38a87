"""Resource names, page tokens and seeds."""

from __future__ import annotations

from random import Random

import pytest

from podracer_core.errors import InvalidInput
from podracer_leaderboard import messages
from podracer_leaderboard.places import derive_seed, stream
from support.errors import raises


@pytest.mark.parametrize(
    "name",
    [
        "",
        "p/leaderboards/j",
        "projects/p/jobs/j",
        "projects/P/leaderboards/j",
        "projects/p/leaderboards/j/x",
    ],
)
def test_a_wrong_leaderboard_is_refused_by_its_field(name):
    with raises(InvalidInput, field="leaderboard"):
        messages.check_leaderboard(name)


def test_agents_are_numbered():
    assert messages.agent_name("projects/p/jobs/j", 7) == "projects/p/jobs/j/agents/a0007"
    assert messages.agent_name("projects/p/jobs/j", 12345) == "projects/p/jobs/j/agents/a12345"
    assert messages.check_agent("projects/p/jobs/j/agents/a0007")


def test_seeds_are_the_same_everywhere_and_differ_by_stream_and_number():
    assert derive_seed(0, "agent", 1) == 3971614174260800439
    assert stream(0, "agent", 1).random() == Random(3971614174260800439).random()
    seeds = {
        derive_seed(seed, name, number)
        for seed in (0, 1)
        for name in ("agent", "proposal")
        for number in range(5)
    }
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)
