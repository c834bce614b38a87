"""When a learner brings what it has trained, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from podracer_core.algorithms import Algorithm
from podracer_core.collect import Collector
from podracer_core.fusion import Contribution, Fused, FusionOptions, FusionTable, Mean
from podracer_core.training import (
    EpochFusion,
    FusionTransport,
    InProcessSource,
    RoundPlan,
    TrainingSession,
)

STEPS = 4 * 16  # of a member in an update


class Desk(FusionTransport):
    """A table with a second learner, which brings what the first one brings; `answers` says when
    anything is fused."""

    def __init__(self, table: FusionTable, answers: Sequence[bool]) -> None:
        self._table, self._answers = table, list(answers)
        self.brought: list[Contribution] = []

    def exchange(self, contribution: Contribution) -> Fused | None:
        self.brought.append(contribution)
        if self._answers and not self._answers.pop(0):
            return None
        self._table.join(1)
        self._table.bring(
            Contribution(1, contribution.epoch, contribution.samples, contribution.growth)
        )
        self._table.open(contribution, 0.0)
        decision = self._table.decide(0.0)
        assert decision is not None
        return decision.fused


@pytest.fixture
def make_fused_session(
    make_algorithm: Callable[..., Algorithm], make_collector: Callable[..., Collector]
) -> Callable[..., tuple[TrainingSession, Desk, EpochFusion]]:
    def make(
        interval: int = 0, answers: Sequence[bool] = ()
    ) -> tuple[TrainingSession, Desk, EpochFusion]:
        algorithm = make_algorithm()
        sharing = algorithm.share(0)
        desk = Desk(FusionTable(Mean(FusionOptions()), sharing.state(), deadline_s=10.0), answers)
        fusion = EpochFusion(algorithm, sharing, desk, 0, interval)
        source = InProcessSource(make_collector(algorithm), algorithm)
        plan = RoundPlan(env_steps=12 * STEPS)
        return TrainingSession(algorithm, source, None, plan, fusion=fusion), desk, fusion

    return make


@pytest.mark.parametrize("interval", [0, 1, 3])
def test_an_epoch_is_an_update_or_as_many_as_the_job_says(make_fused_session, interval):
    session, desk, fusion = make_fused_session(interval)
    every = interval or 1
    while not session.finished:
        session.step()
    # The other learner's steps count as the round's own once they are fused: about half as many
    # updates are needed. The first epoch is one update: until then no learner has statistics.
    updates = 1 + every * -(-5 // every)
    assert session.progress().updates == updates
    assert session.moment().env_steps == [2 * updates * STEPS] * 2
    assert [one.epoch for one in desk.brought] == list(range(1, len(desk.brought) + 1))
    assert [one.samples for one in desk.brought] == [
        2 * STEPS,
        *[2 * every * STEPS] * ((updates - 1) // every),
    ]
    assert fusion.epoch == len(desk.brought)
    assert fusion.sharing.transitions.tolist() == [2 * updates * STEPS] * 2


@pytest.mark.parametrize("leads", [True, False])
def test_the_end_of_the_round_ends_the_leads_epoch(make_fused_session, leads):
    """Else the statistics of what it has seen since the last fusion were in no checkpoint."""
    session, desk, _ = make_fused_session(interval=100)
    desk.closes = lambda last: last and leads
    while not session.finished:
        session.step()
    assert [one.samples // (2 * STEPS) for one in desk.brought] == ([1, 10] if leads else [1])
    seen = session.algorithm.member_state(0)["normalizer"]["observations.count"].item()
    assert (seen == session.moment().env_steps[0]) is leads


def test_at_the_end_of_the_round_statistics_take_in_what_was_not_fused(make_fused_session):
    """Whether anybody was there to fuse with or not. Should training go on, nothing is lost or
    counts twice."""
    session, desk, fusion = make_fused_session(answers=[True, False, False, True])

    def seen() -> float:
        return session.algorithm.member_state(0)["normalizer"]["observations.count"].item()

    session.step()
    desk.closes = lambda last: True
    for updates in (1, 2):
        session.step()
        fusion.finish()
        assert session.moment().env_steps == [(2 + updates) * STEPS] * 2
        assert seen() == session.moment().env_steps[0]
    session.step()
    assert session.moment().env_steps == [8 * STEPS] * 2
    assert seen() == 8 * STEPS


def test_who_comes_late_begins_with_a_whole_epoch(make_fused_session):
    session, desk, fusion = make_fused_session(interval=3, answers=[False])
    fusion.begin(Fused(7, fusion.sharing.state(), (0,)))
    for _ in range(3):
        assert not desk.brought
        session.step()
    assert [(one.epoch, one.samples) for one in desk.brought] == [(8, 2 * 3 * STEPS)]


def test_what_was_not_fused_is_brought_again_with_what_came_since(make_fused_session):
    session, desk, fusion = make_fused_session(answers=[False, False, True, True])
    for _ in range(4):
        session.step()
    assert [one.epoch for one in desk.brought] == [1, 1, 1, 2]
    assert [one.samples for one in desk.brought] == [2 * STEPS, 4 * STEPS, 6 * STEPS, 2 * STEPS]
    assert [one.growth.statistics["observations"].count[0].item() for one in desk.brought] == [
        STEPS, 2 * STEPS, 3 * STEPS, STEPS,
    ]  # fmt: skip
    assert fusion.epoch == 2
    assert session.moment().env_steps == [8 * STEPS] * 2


def test_a_learner_that_is_left_out_counts_what_the_agent_has(make_fused_session):
    """It is a follower: its own steps of that epoch are not in the state that it goes on from."""
    session, desk, fusion = make_fused_session()
    state = fusion.sharing.state()
    ahead = Fused(
        5,
        type(state)(state.parameters, state.statistics, torch.tensor([700, 900]), state.active),
        (0, 2),
    )
    desk.exchange = lambda contribution: ahead  # type: ignore[method-assign]
    session.step()
    assert session.moment().env_steps == [700, 900]
    assert fusion.epoch == 5
