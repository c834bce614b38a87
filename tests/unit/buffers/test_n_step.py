"""Returns of several steps: where they stop, what they bootstrap from, and which of them are
unknown."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers import Replay, Rollout
from podracer_core.random_numbers import replay_keys
from support.transitions import draw, filled, rollouts, told


def by_hand() -> tuple[Replay, Rollout]:
    """One environment, rewards 1, 2, 4 … 128; terminated after the third step, cut off after the
    sixth."""
    rollout = next(rollouts((1, 1, 8, 8), 1, terminated=0.0, truncated=0.0))
    rollout.reward.view(-1).copy_(2.0 ** torch.arange(8))
    rollout.terminated[2] = rollout.truncated[5] = True
    rollout.final_observation[5] = torch.tensor([5005.0, -5005.0])
    replay = Replay(8, rollout)
    replay.add(rollout)
    return replay, rollout


def test_returns_of_three_steps_by_hand():
    replay, _ = by_hand()
    drawn = draw(replay, 200, steps=3)
    # step -> reward, discount, step of the state that it bootstraps from; gamma is a half
    expected = {
        0: (1 + 2 / 2 + 4 / 4, 0.0, None),  # terminated with the last of the three
        1: (2 + 4 / 2, 0.0, None),  # terminated before
        2: (4.0, 0.0, None),
        3: (8 + 16 / 2 + 32 / 4, 0.125, 5.5),  # cut off with the last: the true successor
        4: (16 + 32 / 2, 0.25, 5.5),
        5: (32.0, 0.5, 5.5),
        6: (64 + 128 / 2, 0.25, 8.0),  # nothing is stored after the eighth step, but what it led to
        7: (128.0, 0.5, 8.0),
    }
    step = told(drawn.observation)[0]
    assert sorted(step.unique().tolist()) == list(expected)
    for at, reward, discount, following in zip(
        step.tolist(), drawn.reward[0].tolist(), drawn.discount[0].tolist(),
        told(drawn.next_observation)[0].tolist(), strict=True,
    ):  # fmt: skip
        assert (reward, discount) == expected[int(at)][:2]
        assert expected[int(at)][2] in (None, following)
    assert (drawn.weight == 1).all()


def test_a_return_over_a_row_that_is_not_valid_has_no_weight():
    _, rollout = by_hand()
    rollout.valid[4] = False
    rollout.truncated[4] = True
    replay = Replay(8, rollout)
    replay.add(rollout)
    drawn = draw(replay, 200, steps=3)
    broken = (told(drawn.observation) == 3) | (told(drawn.observation) == 4)
    assert broken.any()
    assert torch.equal(drawn.weight, (~broken).float())


def test_a_return_over_a_gap_has_no_weight():
    shape = (1, 1, 4, 12)
    parts = [*rollouts(shape, 1, 0.0, 0.0), *rollouts(shape, 1, 0.0, 0.0, first=50)]
    drawn = draw(filled(shape, parts), 200, steps=3)
    assert torch.equal(
        drawn.weight, (~torch.isin(told(drawn.observation), torch.tensor([1.0, 2.0, 3.0]))).float()
    )


@pytest.mark.parametrize("steps", [2, 5, 40])
def test_returns_equal_a_loop_over_time_also_where_the_ring_begins_anew(steps):
    shape = (2, 3, 5, 30)
    parts = list(rollouts(shape, 7))
    for part in parts:
        part.reward.div_(1000)
    replay = filled(shape, parts)
    gamma = torch.tensor([0.9, 0.4])
    members = torch.arange(2)
    drawn = replay.sample(200, replay_keys(members), members, gamma, steps)
    rows = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("reward", "terminated", "truncated")
    }
    for member in range(2):
        for index in range(200):
            first = int(told(drawn.observation)[member, index])
            environment = int(drawn.action[member, index, 0] % 100 / 10)
            total, discount, row = 0.0, 1.0, first
            while True:
                total += discount * rows["reward"][row, member, environment].item()
                discount *= gamma[member].item()
                terminated = bool(rows["terminated"][row, member, environment])
                truncated = bool(rows["truncated"][row, member, environment])
                row += 1
                if terminated or truncated or row - first == steps or row == 35:
                    break
            assert drawn.reward[member, index].item() == pytest.approx(total, rel=1e-5)
            assert drawn.discount[member, index].item() == pytest.approx(
                0.0 if terminated else discount, rel=1e-5
            )
            if not terminated:
                assert told(drawn.next_observation)[member, index] == (
                    row - 0.5 if truncated else row
                )
    assert (drawn.weight == 1).all()


def test_of_one_step_terminated_and_truncated_at_once_nothing_follows():
    rollout = next(rollouts((1, 2, 2, 8), 1, terminated=1.0, truncated=1.0))
    replay = Replay(8, rollout)
    replay.add(rollout)
    drawn = draw(replay, 50)
    assert (drawn.discount == 0).all()
    assert (drawn.weight == 1).all()
