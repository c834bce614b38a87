"""Who is waited for, what is fused, and what everybody goes on from; the clock is a number."""

from __future__ import annotations

import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.fusion import (
    Contribution,
    Decision,
    FusionOptions,
    FusionState,
    FusionTable,
    Mean,
)
from support.errors import raises
from support.fusion import make_contribution, mean_of, same

DEADLINE_S = 10.0


def table_of(state: FusionState, *ranks: int, quorum: int = 0) -> FusionTable:
    table = FusionTable(Mean(FusionOptions()), state, quorum=quorum, deadline_s=DEADLINE_S)
    for rank in ranks:
        table.join(rank)
    return table


def assert_fused(
    decision: Decision | None, before: FusionState, brought: list[Contribution]
) -> None:
    """Of exactly these contributions."""
    assert decision is not None
    assert decision.fused is not None
    assert decision.fused.ranks == tuple(sorted(one.rank for one in brought))
    assert same(decision.fused.state, mean_of(before, *brought))


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_all_are_fused_as_soon_as_all_are_there(state, learners):
    table = table_of(state, *range(1, learners))
    present = state
    for epoch in (1, 2, 3):
        brought = [make_contribution(rank, epoch) for rank in reversed(range(learners))]
        table.open(brought[-1], now=0.0)
        for one in brought[:-1]:
            assert table.decide(0.0) is None
            assert table.bring(one) is None
        assert_fused(table.decide(0.0), present, brought)
        assert table.present.epoch == epoch
        assert table.decide(0.0) is None
        present = table.present.state


def test_a_follower_that_brings_before_the_lead_waits_for_it(state):
    table = table_of(state, 1, 2)
    for rank in (2, 1):
        table.bring(make_contribution(rank))
        assert table.decide(1e9) is None
    table.open(make_contribution(0), now=0.0)
    assert_fused(table.decide(0.0), state, [make_contribution(rank) for rank in range(3)])


def test_one_killed_in_the_middle_is_not_waited_for_nor_fused(state):
    table = table_of(state, 1, 2)
    table.bring(make_contribution(1))
    table.open(make_contribution(0), now=0.0)
    assert table.decide(0.0) is None
    table.leave(2)
    assert_fused(table.decide(0.0), state, [make_contribution(0), make_contribution(1)])
    table.bring(make_contribution(1, 2))
    table.leave(1)  # after its contribution; it may not live to see the answer
    table.open(make_contribution(0, 2), now=0.0)
    before = table.present.state
    assert_fused(table.decide(0.0), before, [make_contribution(0, 2)])


def test_a_late_one_costs_one_deadline_and_goes_on_from_the_present(state):
    table = table_of(state, 1, 2, quorum=2)
    now = 0.0
    for epoch in (1, 2, 3):
        table.bring(make_contribution(1, epoch))
        table.open(make_contribution(0, epoch), now)
        before = table.present.state
        if epoch == 1:
            assert table.decide(now + DEADLINE_S - 0.1) is None
            now += DEADLINE_S
        assert_fused(
            table.decide(now), before, [make_contribution(0, epoch), make_contribution(1, epoch)]
        )
    assert table.bring(make_contribution(2, 1)) is table.present
    assert table.present.epoch == 3
    brought = [make_contribution(rank, 4) for rank in range(3)]
    before = table.present.state
    table.bring(brought[1])
    table.open(brought[0], now)
    assert table.decide(now) is None, "it is at the table again, and waited for"
    table.bring(brought[2])
    assert_fused(table.decide(now), before, brought)


def test_no_learner_is_awaited_beyond_what_the_lead_says(state):
    table = table_of(state, 1, quorum=1)
    for now, until in ((0.0, 4.0), (20.0, 20.0 + 2 * DEADLINE_S)):
        before = table.present.state
        table.join(1)
        table.open(make_contribution(0, table.present.epoch + 1), now, until)
        end = min(until, now + DEADLINE_S)
        assert table.remaining_s(now) == end - now
        assert table.decide(end - 0.1) is None
        assert_fused(table.decide(end), before, [make_contribution(0, table.present.epoch)])


def test_a_lead_in_a_hurry_fuses_what_is_there(state):
    table = table_of(state, 1, 2)
    table.bring(make_contribution(2))
    table.open(make_contribution(0), now=0.0)
    assert table.decide(0.0) is None
    assert_fused(
        table.decide(0.0, at_once=True), state, [make_contribution(0), make_contribution(2)]
    )


def test_one_that_comes_back_while_others_wait_is_not_waited_for(state):
    table = table_of(state, 1, 2, quorum=1)
    table.open(make_contribution(0), now=0.0)
    table.decide(DEADLINE_S)
    table.join(1)
    table.open(make_contribution(0, 2), now=0.0)
    assert table.bring(make_contribution(2, 1)) is table.present
    assert table.decide(0.0) is None
    table.leave(1)
    decision = table.decide(0.0)
    assert decision is not None
    assert decision.answered == (0,)


def test_one_that_joins_later_begins_where_the_others_stand(state):
    table = table_of(state)
    for epoch in (1, 2):
        table.open(make_contribution(0, epoch), now=0.0)
        assert table.decide(0.0) is not None
    table.join(1)
    assert table.present.epoch == 2
    assert torch.equal(
        table.present.state.parameters["log_std"],
        make_contribution(0, 2).growth.parameters["log_std"],
    )
    before = table.present.state
    table.open(make_contribution(0, 3), now=0.0)
    table.bring(make_contribution(1, 3))
    assert_fused(table.decide(0.0), before, [make_contribution(0, 3), make_contribution(1, 3)])


def test_less_than_the_quorum_is_not_fused_and_all_train_on(state):
    table = table_of(state, 1, 2, 3, 4)
    table.bring(make_contribution(3))
    table.open(make_contribution(0), now=0.0)
    decision = table.decide(DEADLINE_S)
    assert decision == Decision(None, (0, 3))
    assert table.present.epoch == 0
    table.bring(make_contribution(1))  # late for what was not fused: it counts for what will be
    table.bring(make_contribution(3))
    table.open(make_contribution(0), now=20.0)
    assert table.remaining_s(20.0) == DEADLINE_S
    # Ranks 2 and 4 have missed a deadline, and are not waited for again.
    assert_fused(table.decide(20.0), state, [make_contribution(rank) for rank in (0, 1, 3)])


def test_who_has_gone_is_not_of_the_quorum(state):
    table = table_of(state, 1, 2, 3, 4, quorum=5)
    for rank in (1, 3, 4):
        table.leave(rank)
    table.bring(make_contribution(2))
    table.open(make_contribution(0), now=0.0)
    assert_fused(table.decide(0.0), state, [make_contribution(0), make_contribution(2)])


def test_joining_again_forgets_what_was_brought(state):
    table = table_of(state, 1)
    table.bring(make_contribution(1, samples=100))
    table.join(1)
    table.bring(make_contribution(1, samples=200))
    table.open(make_contribution(0), now=0.0)
    assert_fused(
        table.decide(0.0), state, [make_contribution(0), make_contribution(1, samples=200)]
    )


def test_what_cannot_be_right_is_refused(state):
    table = table_of(state, 1)
    with raises(InvalidInput, "BAD_FUSION", match="2 brings a contribution"):
        table.bring(make_contribution(2))
    for epoch in (0, 2):
        with raises(InvalidInput, "BAD_FUSION", match=f"fusion {epoch}.* 1"):
            table.bring(make_contribution(1, epoch))
    table.bring(make_contribution(1))
    with raises(InvalidInput, "BAD_FUSION", match="fusion 1"):
        table.bring(make_contribution(1))
