"""Members' environments go on where they stood, in whatever cohort they meet again."""

from __future__ import annotations

import pytest
import torch

from podracer_core.errors import InvalidInput
from podracer_core.training import (
    member_environment_states,
    resume_environments,
    stack_states,
    unstack_states,
)
from support.errors import raises


def test_all_members_resumed_is_as_if_nothing_had_happened(make_algorithm, make_collector):
    algorithm = make_algorithm()
    collector = make_collector(algorithm)
    collector.collect(40)
    states = member_environment_states(collector)
    expected = {name: one.clone() for name, one in collector.collect(40).to_tensors().items()}

    again = make_collector(algorithm)
    assert resume_environments(again, states) == [True, True]
    found = again.collect(40).to_tensors()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_member_goes_on_beside_a_new_one(make_algorithm, make_collector):
    algorithm = make_algorithm()
    collector = make_collector(algorithm)
    collector.collect(40)
    states = member_environment_states(collector)
    expected = collector.collect(10).observation.clone()
    fresh = make_collector(algorithm).collect(10).observation.clone()

    mixed = make_collector(algorithm)
    assert resume_environments(mixed, [None, states[1]]) == [False, True]
    rollout = mixed.collect(10)
    assert torch.equal(rollout.observation[:, 0], fresh[:, 0])
    assert torch.equal(rollout.observation[:, 1], expected[:, 1])
    assert rollout.first_step.tolist() == [0, 40]


def test_a_state_of_another_number_of_environments_starts_anew(make_algorithm, make_collector):
    algorithm = make_algorithm()
    collector = make_collector(algorithm, envs=4)
    collector.collect(5)
    other = make_collector(algorithm, envs=6)
    before = other.state()
    assert resume_environments(other, list(member_environment_states(collector))) == [False, False]
    assert all(torch.equal(one, before[name]) for name, one in other.state().items())


@pytest.mark.parametrize("envs", [1, 4])
def test_states_cross_a_wire_in_parts(make_algorithm, make_collector, envs):
    collector = make_collector(make_algorithm(), envs=envs)
    collector.collect(30)
    states = member_environment_states(collector)
    parts = [(0, envs)] if envs == 1 else [(0, 1), (1, 3)]
    for first, count in parts:
        back = unstack_states(stack_states([None, states[1]], first, count))
        assert back[0] is None
        assert back[1] is not None
        for name, whole in states[1].items():
            expected = whole[first : first + count] if whole.dim() else whole
            assert torch.equal(back[1][name], expected)


@pytest.mark.parametrize(
    "broken",
    [
        {"step_count": torch.zeros(2)},
        {"resumed": torch.ones(2), "step_count": torch.zeros(2)},
        {"resumed": torch.ones(2, 1, dtype=torch.bool), "step_count": torch.zeros(2)},
        {"resumed": torch.ones(2, dtype=torch.bool), "step_count": torch.zeros(1)},
        {"resumed": torch.ones(2, dtype=torch.bool), "step_count": torch.zeros(())},
    ],
    ids=["not told who resumes", "not flags", "two axes", "too few members", "no members"],
)
def test_what_is_no_state_is_refused(broken):
    with pytest.raises(InvalidInput):
        unstack_states(broken)


def test_states_of_another_number_of_members_are_refused(make_algorithm, make_collector):
    with raises(InvalidInput, "BAD_TENSOR"):
        resume_environments(make_collector(make_algorithm()), [None] * 3)


def test_nothing_to_send_is_sent_as_nothing():
    assert stack_states([None, None], 0, 4) == {}
