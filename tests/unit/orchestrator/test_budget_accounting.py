"""Whatever rounds a leaderboard asks for, what is used and what is reserved never exceed a job's
budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from podracer_orchestrator.jobs import (
    Budget,
    BudgetSplit,
    Grant,
    RoundLimits,
    Usage,
    cut_round,
    remainder,
)

BUDGET = Budget(env_steps=100_000, cost_s=600.0)
ROUNDS = st.tuples(
    st.sampled_from([0, 100, 1000]), st.floats(1.0, 4.0), st.integers(1, 8), st.floats(0.0, 1.0)
)
"""Steps of a member (0: 15 seconds), how many times longer the round is for agents that improve,
members, and which part of what was reserved is used."""


@given(st.lists(ROUNDS, max_size=200), st.integers(1, 4))
def test_used_and_reserved_stay_within_the_budget(rounds, pods):
    held: list[tuple[Grant, float]] = []
    env_steps, cost_s = 0, 0.0
    for steps, stretch, members, part in rounds:
        if len(held) == pods:  # the oldest round ends: it gives back what it has not used
            grant, used = held.pop(0)
            env_steps += int(grant.reserved_env_steps * used)
            cost_s += grant.reserved_cost_s * used
        reserved_steps = sum(grant.reserved_env_steps for grant, _ in held)
        reserved_s = sum(grant.reserved_cost_s for grant, _ in held)
        usage = Usage(
            env_steps, cost_s=cost_s, reserved_env_steps=reserved_steps, reserved_cost_s=reserved_s
        )
        left = remainder(BUDGET, usage)
        whole = RoundLimits(int(steps * stretch), None if steps else 15.0 * stretch)
        granted = cut_round(whole, left, members, BudgetSplit(pods - len(held)))
        if granted is None:
            assert left.is_empty
            continue
        held.append((granted, part))
        assert left.env_steps is not None and left.cost_s is not None
        # Every member gets a step at least, so a last cohort may reserve a few more than there are.
        assert granted.reserved_env_steps <= max(left.env_steps, members)
        assert granted.reserved_cost_s <= left.cost_s
        assert env_steps + reserved_steps + granted.reserved_env_steps <= 100_000 + members
        assert cost_s + reserved_s + granted.reserved_cost_s <= 600.0 + 1e-6
