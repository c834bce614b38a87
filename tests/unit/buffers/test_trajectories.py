"""The H-term's memory: whole episodes and segments are found as a plain loop finds them, and
nothing else is."""

from __future__ import annotations

import pytest
import torch

from podracer_core.buffers import Pieces, Trajectories, allocate_rollout
from podracer_core.errors import InvalidInput
from support.errors import raises
from support.experience import numbered, rollouts

MEMBERS, ENVS = 3, 4


def filled(
    reward: torch.Tensor,
    ended: torch.Tensor,
    horizon: int,
    rows: int,
    valid: torch.Tensor | None = None,
    first_step: int = 0,
) -> Trajectories:
    """Trajectories of `rows` rows that have seen this history."""
    found = None
    for rollout in rollouts(reward, ended, horizon, valid, first_step):
        found = found or Trajectories(rollout, capacity=rows * reward.shape[2], least_rows=1)
        found.add(rollout)
    assert found is not None
    assert found.rows == rows
    return found


def history(steps: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(steps, MEMBERS, ENVS, generator=generator)
    ended, broken = torch.rand(2, steps, MEMBERS, ENVS, generator=generator)
    return reward, ended < 0.2, broken > 0.03


def looked_up(pieces: Pieces, member: int, environment: int) -> dict[int, tuple[int, int, float]]:
    """row -> (first, last, total) of the rows that belong to a piece."""
    numbers = (pieces.first, pieces.last, pieces.total, pieces.within)
    columns = (number[:, member, environment].tolist() for number in numbers)
    return {
        row: (first, last, total)
        for row, (first, last, total, within) in enumerate(zip(*columns, strict=True))
        if within
    }


def test_whole_episodes_by_hand():
    #        row      0  1  2  3  4  5  6
    # environment 0:  a  a  a| b  b| c  c   a: 1 + 2 + 3 = 6, b: 4 + 5 = 9, c has not ended
    # environment 1:  d| e  e  e  e  e  e|  d: 10, e: 20 + … + 70 = 270
    reward = torch.tensor(
        [[1.0, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60], [7, 70]]
    ).unsqueeze(1)
    ended = torch.zeros(7, 1, 2, dtype=torch.bool)
    ended[2, 0, 0] = ended[4, 0, 0] = ended[0, 0, 1] = ended[6, 0, 1] = True
    pieces = filled(reward, ended, horizon=3, rows=7).episodes()
    assert looked_up(pieces, 0, 0) == {
        **dict.fromkeys((0, 1, 2), (0, 2, 6.0)),
        **dict.fromkeys((3, 4), (3, 4, 9.0)),
    }
    assert looked_up(pieces, 0, 1) == {0: (0, 0, 10.0), **dict.fromkeys(range(1, 7), (1, 6, 270.0))}
    assert pieces.closing.nonzero().tolist() == [[0, 0, 1], [2, 0, 0], [4, 0, 0], [6, 0, 1]]


def test_segments_by_hand():
    #        row      0  1  2  3  4  5  6   segments of 2, counted back from the end
    # environment 0:  -  a  a| b  b| c  c   a: 2 + 3, b: 4 + 5, c: 6 + 7; row 0 is left over
    # environment 1:  d  d  x  -  e  e|  -  row 2 is broken: d: 10 + 20, e: 50 + 60; rows 3 and 6
    #                 are left over
    reward = torch.tensor(
        [[1.0, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60], [7, 70]]
    ).unsqueeze(1)
    ended = torch.zeros(7, 1, 2, dtype=torch.bool)
    ended[2, 0, 0] = ended[4, 0, 0] = ended[5, 0, 1] = True
    valid = torch.ones_like(ended)
    valid[2, 0, 1] = False
    pieces = filled(reward, ended, horizon=3, rows=7, valid=valid).segments(2)
    assert looked_up(pieces, 0, 0) == {
        **dict.fromkeys((1, 2), (1, 2, 5.0)),
        **dict.fromkeys((3, 4), (3, 4, 9.0)),
        **dict.fromkeys((5, 6), (5, 6, 13.0)),
    }
    assert looked_up(pieces, 0, 1) == {
        **dict.fromkeys((0, 1), (0, 1, 30.0)),
        **dict.fromkeys((4, 5), (4, 5, 110.0)),
    }


def episodes_by_loop(
    reward: list[float], ended: list[bool], valid: list[bool]
) -> dict[int, tuple[int, int, float]]:
    found, start = {}, 0
    for row, end in enumerate(ended):
        if end:
            if all(valid[start : row + 1]):
                found |= dict.fromkeys(
                    range(start, row + 1), (start, row, sum(reward[start : row + 1]))
                )
            start = row + 1
    return found


def segments_by_loop(
    reward: list[float], ended: list[bool], valid: list[bool]
) -> dict[int, tuple[int, int, float]]:
    runs: list[list[int]] = [[]]
    for row, end in enumerate(ended):
        if valid[row]:
            runs[-1].append(row)
        if end or not valid[row]:
            runs.append([])
    found = {}
    for run in runs:
        while len(run) >= 3:
            run, piece = run[:-3], run[-3:]
            found |= dict.fromkeys(piece, (piece[0], piece[-1], sum(reward[row] for row in piece)))
    return found


# fewer than the ring has, and several times round
@pytest.mark.parametrize("steps", [4, 11, 26, 57])
@pytest.mark.parametrize("by_loop", [episodes_by_loop, segments_by_loop])
def test_pieces_are_those_that_a_loop_finds(steps, by_loop):
    rows = 20
    reward, ended, valid = history(steps)
    trajectories = filled(reward, ended, horizon=5, rows=rows, valid=valid)
    pieces = trajectories.episodes() if by_loop is episodes_by_loop else trajectories.segments(3)
    oldest, found = max(0, steps - rows), 0
    assert len(trajectories) == pieces.reward.shape[0] == steps - oldest
    for member in range(MEMBERS):
        for environment in range(ENVS):
            column = (slice(oldest, None), member, environment)
            lists = [values[column].tolist() for values in (reward, ended, valid)]
            if (
                by_loop is episodes_by_loop
                and oldest
                and not ended[oldest - 1, member, environment]
            ):
                # The oldest episode has lost its first rows: not whole.
                lost = lists[1].index(True) + 1 if True in lists[1] else len(lists[1])
                lists[2][:lost] = [False] * lost
            expected, mine = by_loop(*lists), looked_up(pieces, member, environment)
            assert {row: piece[:2] for row, piece in mine.items()} == {
                r: piece[:2] for r, piece in expected.items()
            }
            assert all(mine[row][2] == pytest.approx(piece[2]) for row, piece in expected.items())
            found += len(expected)
    assert found


@pytest.mark.parametrize("horizon", [1, 7, 30, 100])
def test_what_is_taken_is_what_was_stored_however_long_the_rollouts(horizon):
    steps, rows = 100, 64
    reward, ended, _ = history(steps)
    trajectories = filled(reward, ended, horizon, rows)
    pieces = trajectories.segments(1)
    assert trajectories.spare_rows == 1
    assert pieces.within.all()
    row = torch.tensor([[0, 5, 63], [1, 62, 2], [3, 3, 4]])
    environment = torch.tensor([[0, 1, 2], [3, 0, 1], [2, 3, 0]])
    expected = [
        [
            numbered(steps - rows + r, m, e)
            for r, e in zip(row[m].tolist(), environment[m].tolist(), strict=True)
        ]
        for m in range(MEMBERS)
    ]
    for _ in range(2):
        observation, action, mask = trajectories.take(pieces.origin, row, environment)
        assert observation.shape == (MEMBERS, 3, 2)
        assert action.shape == (MEMBERS, 3, 1)
        assert mask is None
        assert observation[..., 0].tolist() == action[..., 0].tolist() == expected
        assert (observation[..., 1] == -observation[..., 0]).all()
        # What was found can still be taken after one more row.
        trajectories.add(next(rollouts(reward[:1], ended[:1], 1)))


def test_action_masks_are_kept():
    rollout = allocate_rollout(6, 2, 3, ((2,), torch.float32), ((), torch.int64), mask_size=5)
    assert rollout.action_mask is not None
    rollout.action_mask.copy_(
        torch.rand(7, 2, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    )
    trajectories = Trajectories(rollout, capacity=18, least_rows=1)
    trajectories.add(rollout)
    row, environment = torch.tensor([[4, 0], [5, 2]]), torch.tensor([[2, 1], [0, 2]])
    _, action, mask = trajectories.take(trajectories.episodes().origin, row, environment)
    assert action.shape == (2, 2)
    assert mask is not None
    assert torch.equal(mask[1, 0], rollout.action_mask[5, 1, 0])
    assert torch.equal(mask[0, 1], rollout.action_mask[0, 0, 1])


def test_of_many_environments_only_some_are_kept_for_long_enough():
    example = allocate_rollout(32, 2, 256, ((3,), torch.float32), ((1,), torch.float32))
    trajectories = Trajectories(example)
    assert (trajectories.rows, trajectories.num_envs) == (1024, 16)
    trajectories.add(example)
    assert trajectories.count.tolist() == [32 * 16] * 2
    few = Trajectories(allocate_rollout(1, 2, 3, ((3,), torch.float32), ((1,), torch.float32)))
    assert (few.rows, few.num_envs) == (5462, 3)


def test_an_episode_without_its_beginning_is_not_whole():
    reward, ended = torch.ones(6, 1, 1), torch.zeros(6, 1, 1, dtype=torch.bool)
    ended[2] = ended[5] = True
    assert filled(reward, ended, 6, 6, first_step=0).episodes().closing.flatten().tolist() == [
        0,
        0,
        1,
        0,
        0,
        1,
    ]
    assert filled(reward, ended, 6, 6, first_step=7).episodes().closing.flatten().tolist() == [
        0,
        0,
        0,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_goes_on_across_a_rollout_that_was_lost(ends):
    """Two of three rollouts arrive. The second may begin in the middle of an episode, also where
    the first ended."""
    reward, ended = torch.ones(9, 1, 1), torch.zeros(9, 1, 1, dtype=torch.bool)
    ended[2], ended[7] = ends, True
    first, _, third = rollouts(reward, ended, 3)
    trajectories = Trajectories(first, capacity=6, least_rows=1)
    trajectories.add(first)
    trajectories.add(third)
    assert trajectories.episodes().closing.flatten().tolist() == [
        False,
        False,
        ends,
        False,
        False,
        False,
    ]
    # The newest row before the gap leads nowhere unless it ended its episode.
    assert trajectories.count.tolist() == [6 if ends else 5]
    assert trajectories.segments(3).closing.flatten().tolist() == [
        False,
        False,
        ends,
        False,
        False,
        False,
    ]


def test_broken_rows_poison_nothing():
    reward, ended, valid = history(30)
    reward[~valid] = torch.nan
    trajectories = filled(reward, ended, 5, 30, valid=valid)
    assert trajectories.count.tolist() == valid.sum((0, 2)).tolist()
    for pieces in (trajectories.episodes(), trajectories.segments(3)):
        assert pieces.total.isfinite().all()
        assert not (pieces.within & ~valid).any()


def test_other_sizes_and_too_little_memory_are_refused(monkeypatch):
    reward, ended, _ = history(5)
    trajectories = filled(reward, ended, 5, 5)
    with pytest.raises(InvalidInput, match="3 x 2 environments does"):
        trajectories.add(next(rollouts(reward[:, :, :2], ended[:, :, :2], 5)))
    # there is room for it
    monkeypatch.setattr("podracer_core.buffers.rollout.require_memory", lambda *_, **__: None)
    monkeypatch.setattr("podracer_core.device.free_bytes", lambda device: 1000)
    with raises(InvalidInput, "REPLAY_TOO_LARGE", match="smaller h_term"):
        filled(reward, ended, 5, 5)
