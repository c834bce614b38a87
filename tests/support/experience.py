"""Rollouts whose every observation says where it belongs, one after the other as a collector would
give them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from podracer_core.buffers import Rollout, allocate_rollout


def numbered(step: int, member: int, environment: int) -> float:
    """The observation's first number, of the step in the whole history."""
    return step * 100.0 + member * 10.0 + environment


def rollouts(
    reward: torch.Tensor,
    ended: torch.Tensor,
    horizon: int,
    valid: torch.Tensor | None = None,
    first_step: int = 0,
) -> Iterator[Rollout]:
    """A history reward, ended, valid [T, M, E] as rollouts of `horizon` steps (the last may be
    shorter).

    Observations are [number, -number], see `numbered`; actions [number]. Every other end is a
    truncation."""
    steps, members, num_envs = reward.shape
    step = torch.arange(steps + 1).view(-1, 1, 1) * 100.0
    number = (
        step + torch.arange(members).view(1, -1, 1) * 10.0 + torch.arange(num_envs).view(1, 1, -1)
    )
    for start in range(0, steps, horizon):
        rows = slice(start, min(start + horizon, steps))
        count = rows.stop - rows.start
        rollout = allocate_rollout(
            count, members, num_envs, ((2,), torch.float32), ((1,), torch.float32)
        )
        rollout.observation.copy_(torch.stack([number, -number], -1)[start : rows.stop + 1])
        rollout.final_observation.copy_(rollout.observation[1:])
        rollout.action.copy_(number[rows].unsqueeze(-1))
        rollout.reward.copy_(reward[rows])
        odd = torch.arange(start, rows.stop).view(-1, 1, 1) % 2 == 1
        rollout.truncated.copy_(ended[rows] & odd)
        rollout.terminated.copy_(ended[rows] & ~odd)
        if valid is not None:
            rollout.valid.copy_(valid[rows])
        rollout.first_step.fill_(first_step + start)
        yield rollout
