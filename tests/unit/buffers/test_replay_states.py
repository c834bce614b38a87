"""A member's transitions leave a replay buffer and go into another one: what they lead to goes with
them."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers import Replay
from podracer_core.errors import InvalidInput
from support.transitions import Shape, draw, filled, rollouts, told


def round_trip(states: list[dict[str, torch.Tensor] | None], shape: Shape) -> Replay:
    replay = Replay(shape[3], next(rollouts(shape, 1)))
    replay.load_member_states(list(states))
    return replay


def test_a_buffer_goes_on_from_its_states_as_if_nothing_had_happened():
    shape = (3, 4, 5, 26)
    parts = list(rollouts(shape, 7, truncated=0.4))
    through = filled(shape, parts[:5])
    resumed = round_trip([through.member_state(m) for m in range(3)], shape)
    for part in (None, *parts[5:]):
        if part is not None:
            through.add(part)
            resumed.add(part)
        assert torch.equal(through.size, resumed.size)
        first, second = draw(through, steps=3), draw(resumed, steps=3)
        for name in ("observation", "action", "reward", "discount", "next_observation", "weight"):
            assert torch.equal(getattr(first, name), getattr(second, name))


def test_states_are_copies():
    shape = (2, 3, 4, 20)
    parts = list(rollouts(shape, 4))
    replay = filled(shape, parts[:3])
    state = replay.member_state(1)
    before = {name: tensor.clone() for name, tensor in state.items()}
    replay.add(parts[3])
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("capacity", [16, 400])
def test_states_go_into_a_smaller_or_a_larger_buffer(capacity):
    shape = (2, 4, 2, 48)
    parts = list(rollouts(shape, 8, terminated=0.0, truncated=0.2))
    replay = filled(shape, parts)
    other = round_trip([replay.member_state(m) for m in range(2)], (2, 4, 2, capacity))
    rows = min(other.rows, 12)
    assert other.rows == max(capacity // 4, 4)
    assert other.size.tolist() == [rows] * 2
    drawn = draw(other)
    step = told(drawn.observation)
    assert step.unique().tolist() == list(range(16 - rows, 16))
    truncated = torch.cat([part.truncated for part in parts])
    cut_off = truncated[step.long(), torch.arange(2).view(-1, 1), (drawn.reward % 100 / 10).long()]
    assert (drawn.weight == 1).all()
    assert torch.equal(told(drawn.next_observation), torch.where(cut_off, step + 0.5, step + 1))
    following = next(rollouts(shape, 1, first=16))
    other.add(following)
    assert other.size.tolist() == [min(other.rows, rows + 2)] * 2


def test_a_member_without_a_state_draws_from_what_comes_later():
    shape = (3, 4, 2, 48)
    replay = filled(shape, list(rollouts(shape, 5)))
    resumed = round_trip([replay.member_state(0), None, replay.member_state(2)], shape)
    assert resumed.size.tolist() == [10, 0, 10]
    assert resumed.member_state(1)["reward"].shape == (0, 4)
    assert (draw(resumed).weight[1] == 0).all()  # nothing is there yet
    resumed.add(next(rollouts(shape, 1, first=10)))
    # Members of different ages go on together, too: what is newest of each lies side by side.
    for replay in (resumed, round_trip([resumed.member_state(m) for m in range(3)], shape)):
        assert replay.size.tolist() == [12, 2, 12]
        drawn = draw(replay)
        assert told(drawn.observation)[1].unique().tolist() == [10, 11]
        assert told(drawn.observation)[0].unique().tolist() == list(range(12))
        assert (drawn.weight == 1).all()
        replay.add(next(rollouts(shape, 1, first=12)))
        drawn = draw(replay)
        assert told(drawn.observation)[1].unique().tolist() == [10, 11, 12, 13]
        assert (drawn.weight == 1).all()


def test_no_state_at_all_leaves_an_empty_buffer():
    shape = (2, 4, 2, 48)
    empty = Replay(48, next(rollouts(shape, 1))).member_state(0)
    for states in ([None, None], [empty, None]):
        replay = round_trip(list(states), shape)
        assert len(replay) == 0
        replay.add(next(rollouts(shape, 1)))
        assert (draw(replay).weight == 1).all()


def test_states_that_do_not_fit_are_refused():
    shape = (2, 4, 2, 48)
    replay = filled(shape, list(rollouts(shape, 3)))
    states = [replay.member_state(m) for m in range(2)]
    with pytest.raises(InvalidInput, match="empty"):
        replay.load_member_states(list(states))
    assert replay.fits(states[0])
    with pytest.raises(InvalidInput, match="member 0's transitions"):
        round_trip(list(states), (2, 5, 2, 48))
    pixels = Replay(48, next(rollouts(shape, 1, dtype=torch.uint8)))
    assert not pixels.fits(states[0])
    with pytest.raises(InvalidInput, match="member 1"):
        pixels.load_member_states([None, states[1]])
