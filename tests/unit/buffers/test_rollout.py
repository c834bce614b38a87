"""A rollout comes through a wire as it went in."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers import Rollout, allocate_rollout
from podracer_core.errors import InvalidInput
from support.errors import raises

HORIZON, MEMBERS, ENVS = 5, 2, 3


def filled() -> Rollout:
    """Every number is different; two episodes end, one of them by truncation, one world is
    broken."""
    rollout = allocate_rollout(HORIZON, MEMBERS, ENVS, ((4, 2), torch.float32), ((), torch.int64))
    start = 0
    for name in ("observation", "action", "log_prob", "reward"):
        tensor = getattr(rollout, name)
        tensor.copy_(torch.arange(start, start + tensor.numel()).view_as(tensor))
        start += tensor.numel()
    rollout.final_observation.copy_(rollout.observation[1:])
    rollout.terminated[1, 0, 2] = rollout.truncated[3, 1, 0] = rollout.truncated[4, 1, 1] = True
    rollout.valid[4, 1, 1] = False
    for row in ((1, 0, 2), (3, 1, 0), (4, 1, 1)):
        rollout.final_observation[row] = -1.0 - row[0]
    rollout.first_step.copy_(torch.tensor([5, 7]))
    rollout.episodes.return_sum.copy_(torch.tensor([1.5, 2.5]))
    return rollout


def test_shapes_and_counts():
    rollout = filled()
    assert (rollout.horizon, rollout.members, rollout.num_envs, rollout.env_steps) == (5, 2, 3, 30)
    assert rollout.observation.shape == (6, 2, 3, 4, 2)
    assert rollout.final_observation.shape == (5, 2, 3, 4, 2)


def test_one_that_memory_has_no_room_for_is_refused():
    with raises(InvalidInput, "ROLLOUT_TOO_LARGE") as no:
        allocate_rollout(1_000_000, 16, 65_536, ((4,), torch.float32), ((), torch.int64))
    assert (no.value.reason, no.value.violations[0].field) == ("ROLLOUT_TOO_LARGE", "horizon")


def test_tensors_round_trip_bit_for_bit():
    rollout = filled()
    tensors = rollout.to_tensors()
    assert sum(tensor.nbytes for tensor in tensors.values()) <= rollout.size_bytes
    assert tensors["final_rows"].shape == (3, 4, 2)
    back = Rollout.from_tensors(tensors, policy_version=9)
    assert back.policy_version == 9
    names = ("observation", "final_observation", "action", "log_prob", "reward")
    for name in (*names, "terminated", "truncated", "valid", "first_step"):
        assert torch.equal(getattr(back, name), getattr(rollout, name)), name
    assert back.episodes.return_sum.tolist() == [1.5, 2.5]


def test_action_masks_round_trip():
    rollout = allocate_rollout(
        HORIZON, MEMBERS, ENVS, ((2,), torch.float32), ((), torch.int64), mask_size=4
    )
    assert rollout.action_mask is not None
    assert rollout.action_mask.shape == (6, 2, 3, 4)
    assert rollout.action_mask.all()
    rollout.action_mask.copy_(
        torch.rand(6, 2, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    )
    back = Rollout.from_tensors(rollout.to_tensors())
    assert torch.equal(back.action_mask, rollout.action_mask)
    without = filled()
    assert without.action_mask is None
    assert "action_mask" not in without.to_tensors()
    assert Rollout.from_tensors(without.to_tensors()).action_mask is None


def test_damaged_tensors_are_refused():
    tensors = filled().to_tensors()
    with pytest.raises(InvalidInput, match="reward"):
        Rollout.from_tensors({name: tensor for name, tensor in tensors.items() if name != "reward"})
    with pytest.raises(InvalidInput, match="log_prob"):
        Rollout.from_tensors(tensors | {"log_prob": torch.zeros(5, 2, 4)})
    with pytest.raises(InvalidInput, match="observation"):
        Rollout.from_tensors(tensors | {"observation": tensors["observation"][1:]})
    with pytest.raises(InvalidInput, match="final_rows"):
        Rollout.from_tensors(tensors | {"final_rows": tensors["final_rows"][1:]})
    with pytest.raises(InvalidInput, match=r"shape \(5, 2, 3, 4\)"):
        Rollout.from_tensors(tensors | {"action_mask": torch.ones(5, 2, 3, 4, dtype=torch.bool)})
    with pytest.raises(InvalidInput, match=r"torch\.float32 with 4"):
        Rollout.from_tensors(tensors | {"action_mask": torch.ones(6, 2, 3, 4)})
