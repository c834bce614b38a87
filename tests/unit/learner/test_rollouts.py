"""Rollouts of several workers, put together: no row lost, none doubled."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers import Rollout, allocate_rollout
from podracer_core.errors import InvalidInput
from podracer_learner.workers import absent_rows, join_rollouts, moved_to

T, M = 3, 2


def numbered(first: int, count: int, version: int, mask_size: int = 0) -> Rollout:
    """Environment e of member m at step t holds 100 t + 10 m + e, and forbids action e."""
    rollout = allocate_rollout(
        T, M, count, ((1,), torch.float32), ((), torch.int64), mask_size=mask_size
    )
    numbers = (
        100 * torch.arange(T + 1).view(-1, 1, 1)
        + 10 * torch.arange(M).view(-1, 1)
        + first
        + torch.arange(count)
    )
    rollout.observation.copy_(numbers.unsqueeze(-1))
    for name in ("reward", "log_prob", "action"):
        getattr(rollout, name).copy_(numbers[:T])
    rollout.first_step.fill_(7)
    rollout.episodes.count.copy_(torch.tensor([count, 0]))
    rollout.episodes.return_sum.copy_(torch.tensor([1.5 * count, 0.0]))
    object.__setattr__(rollout, "policy_version", version)
    if rollout.action_mask is not None:
        rollout.action_mask.copy_(
            torch.arange(mask_size) != first + torch.arange(count).unsqueeze(1)
        )
    return rollout


def test_environments_stand_side_by_side_in_order():
    joined = join_rollouts([numbered(0, 2, 4), numbered(2, 3, 3)])
    whole = numbered(0, 5, 3)
    for name in ("observation", "reward", "log_prob", "action", "valid", "first_step"):
        assert torch.equal(getattr(joined, name), getattr(whole, name)), name
    assert joined.num_envs == 5
    assert joined.policy_version == 3, "as old as its oldest part"
    assert joined.episodes.count.tolist() == [5, 0]
    assert joined.episodes.return_sum.tolist() == [7.5, 0.0]


def test_action_masks_go_along():
    joined = join_rollouts([numbered(0, 2, 1, mask_size=5), numbered(2, 3, 1, mask_size=5)])
    assert joined.action_mask is not None
    assert torch.equal(joined.action_mask, numbered(0, 5, 1, mask_size=5).action_mask)
    assert joined.action_mask.shape == (T + 1, M, 5, 5)
    assert torch.equal(moved_to(joined, torch.device("cpu")).action_mask, joined.action_mask)
    assert join_rollouts([numbered(0, 2, 1), numbered(2, 3, 1)]).action_mask is None
    assert moved_to(numbered(0, 2, 1), torch.device("cpu")).action_mask is None
    with pytest.raises(InvalidInput, match="2 workers sent"):
        join_rollouts([numbered(0, 2, 1, mask_size=5), numbered(2, 3, 1)])


def test_one_alone_is_itself():
    rollout = numbered(0, 2, 1)
    assert join_rollouts([rollout]) is rollout


def test_a_worker_that_has_not_answered_has_its_place_and_no_valid_row():
    here = numbered(0, 2, 4, mask_size=5)
    standing = torch.tensor([[[70.0], [71.0], [72.0]], [[80.0], [81.0], [82.0]]])
    absent = absent_rows(here, 3, standing)
    joined = join_rollouts([here, absent])
    assert (joined.num_envs, joined.live_envs, joined.answered) == (5, 2, 2)
    assert joined.valid[:, :, :2].all()
    assert not joined.valid[:, :, 2:].any()
    assert joined.action_mask is not None and joined.action_mask[:, :, 2:].all()
    for name in ("observation", "final_observation"):
        assert (getattr(joined, name)[:, :, 2:] == standing).all(), (
            "the row before keeps its successor"
        )
    assert not (joined.terminated | joined.truncated)[:, :, 2:].any()
    assert torch.equal(joined.episodes.count, here.episodes.count)
    assert joined.policy_version == 4
    assert not absent_rows(here, 3, None).observation.any()
    assert join_rollouts([here, numbered(2, 3, 4, mask_size=5)]).answered is None


def test_rows_of_several_versions_are_as_old_as_the_oldest_and_keep_their_own_probabilities():
    joined = join_rollouts([numbered(0, 2, 4), numbered(2, 3, 2)])
    assert joined.policy_version == 2
    assert torch.equal(joined.log_prob, numbered(0, 5, 0).log_prob)
