"""Rollouts of several workers, put together: no row lost, none doubled."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers.rollout import Rollout, allocate_rollout
from podracer_core.errors import InvalidInput
from podracer_learner.workers import _moved, join_rollouts

T, M = 3, 2


def numbered(first: int, count: int, version: int, mask_size: int = 0) -> Rollout:
    """Environment e of member m at step t holds 100 t + 10 m + e, and forbids action e."""
    rollout = allocate_rollout(T, M, count, ((1,), torch.float32), ((), torch.int64), mask_size=mask_size)
    numbers = 100 * torch.arange(T + 1).view(-1, 1, 1) + 10 * torch.arange(M).view(-1, 1) + first + torch.arange(count)
    rollout.observation.copy_(numbers.unsqueeze(-1))
    for name in ("reward", "log_prob", "action"):
        getattr(rollout, name).copy_(numbers[:T])
    rollout.first_step.fill_(7)
    rollout.episodes.count.copy_(torch.tensor([count, 0]))
    rollout.episodes.return_sum.copy_(torch.tensor([1.5 * count, 0.0]))
    object.__setattr__(rollout, "policy_version", version)
    if rollout.action_mask is not None:
        rollout.action_mask.copy_(torch.arange(mask_size) != first + torch.arange(count).unsqueeze(1))
    return rollout


def test_environments_stand_side_by_side_in_order() -> None:
    joined = join_rollouts([numbered(0, 2, 4), numbered(2, 3, 3)])
    whole = numbered(0, 5, 3)
    for name in ("observation", "reward", "log_prob", "action", "valid", "first_step"):
        assert torch.equal(getattr(joined, name), getattr(whole, name)), name
    assert joined.num_envs == 5
    assert joined.policy_version == 3, "as old as its oldest part"
    assert joined.episodes.count.tolist() == [5, 0]
    assert joined.episodes.return_sum.tolist() == [7.5, 0.0]


def test_action_masks_go_along() -> None:
    joined = join_rollouts([numbered(0, 2, 1, mask_size=5), numbered(2, 3, 1, mask_size=5)])
    assert joined.action_mask is not None
    assert torch.equal(joined.action_mask, numbered(0, 5, 1, mask_size=5).action_mask)
    assert joined.action_mask.shape == (T + 1, M, 5, 5)
    assert torch.equal(_moved(joined, torch.device("cpu")).action_mask, joined.action_mask)
    assert join_rollouts([numbered(0, 2, 1), numbered(2, 3, 1)]).action_mask is None
    assert _moved(numbered(0, 2, 1), torch.device("cpu")).action_mask is None
    with pytest.raises(InvalidInput, match="1 of 2 workers sent action masks; all or none have to"):
        join_rollouts([numbered(0, 2, 1, mask_size=5), numbered(2, 3, 1)])


def test_one_alone_is_itself() -> None:
    rollout = numbered(0, 2, 1)
    assert join_rollouts([rollout]) is rollout
