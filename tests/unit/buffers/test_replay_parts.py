"""Transitions are cut into parts that do not change while more is stored, and come together again
as they were."""

from __future__ import annotations

import hashlib

import pytest
import safetensors.torch
import torch

from podracer_core.buffers import Replay, from_parts, to_parts
from podracer_core.errors import InvalidInput
from support.transitions import rollouts

SHAPE = (2, 4, 3, 80)  # members, environments, horizon, capacity: 20 rows
PART_BYTES = 100  # of two rows


def hashes(parts: dict[str, dict[str, torch.Tensor]]) -> dict[str, str]:
    whole = {
        name: {key: tensor.contiguous() for key, tensor in part.items()}
        for name, part in parts.items()
    }
    return {
        name: hashlib.sha256(safetensors.torch.save(part)).hexdigest()
        for name, part in whole.items()
    }


def test_parts_come_together_as_they_were_and_most_stay_as_they_are():
    first = next(rollouts(SHAPE, 1))
    replay = Replay(SHAPE[3], first, prioritized=True)
    before: dict[str, str] = {}
    for part in rollouts(SHAPE, 15, truncated=0.3):
        replay.add(part)
        state = replay.member_state(1)
        parts = to_parts(state, PART_BYTES)
        back = from_parts(dict(reversed(parts.items())))
        assert set(back) == set(state)
        assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
        after = hashes(parts)
        again = [name for name, value in after.items() if before.get(name) == value]
        stay = before.keys() & after.keys() - {"tail"}
        assert len(again) >= len(stay) - 2, (
            "but for the oldest, of which a row has gone, and the newest"
        )
        before = after
    assert int(state["first_row"]) == 45 - 20


def test_a_member_that_goes_on_elsewhere_cuts_at_the_same_places():
    parts = list(rollouts(SHAPE, 14, truncated=0.1))
    through = Replay(SHAPE[3], parts[0])
    for part in parts[:9]:
        through.add(part)
    resumed = Replay(SHAPE[3], parts[0])
    resumed.load_member_states(
        [from_parts(to_parts(through.member_state(m), PART_BYTES)) for m in range(2)]
    )
    for part in parts[9:]:
        through.add(part)
        resumed.add(part)
        one, other = (
            hashes(to_parts(each.member_state(0), PART_BYTES)) for each in (through, resumed)
        )
        assert one == other


def test_who_comes_without_transitions_counts_from_its_own_first():
    parts = list(rollouts(SHAPE, 3))
    replay = Replay(SHAPE[3], parts[0])
    replay.add(parts[0])
    resumed = Replay(SHAPE[3], parts[0])
    resumed.load_member_states([replay.member_state(0), None])
    assert [int(resumed.member_state(member)["first_row"]) for member in range(2)] == [0, 0]
    resumed.add(parts[1])
    assert [resumed.member_state(member)["reward"].shape[0] for member in range(2)] == [6, 3]
    assert [int(resumed.member_state(member)["first_row"]) for member in range(2)] == [0, 0]


def test_a_part_that_is_missing_is_noticed():
    replay = Replay(SHAPE[3], next(rollouts(SHAPE, 1)))
    for part in rollouts(SHAPE, 5):
        replay.add(part)
    parts = to_parts(replay.member_state(0), PART_BYTES)
    for name in ("tail", "1"):
        with pytest.raises(InvalidInput, match="without a gap"):
            from_parts({key: part for key, part in parts.items() if key != name})
