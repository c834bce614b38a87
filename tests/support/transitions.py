"""Rollouts whose rows say who they are, for replay buffers: what is drawn can be told from what was
stored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from podracer_core.buffers import Replay, Rollout, Transitions, allocate_rollout
from podracer_core.random_numbers import replay_keys

# members, environments, steps of a rollout, capacity
Shape = tuple[int, int, int, int]
DRAWN = 600  # of at most 40 rows: one that can be drawn is, but for once in 10^6


def number(
    step: int | torch.Tensor, member: int | torch.Tensor, environment: int | torch.Tensor
) -> torch.Tensor:
    """Of a row: what its observation says."""
    return torch.as_tensor(step * 1000 + member * 100 + environment * 10, dtype=torch.float32)


def told(observation: torch.Tensor) -> torch.Tensor:
    """The step that an observation [..., 2] belongs to; a cut-off row's successor lies at half a
    step."""
    return observation[..., 0].div(1000, rounding_mode="floor") + (observation[..., 0] % 10) / 10


def rollouts(
    shape: Shape,
    count: int,
    terminated: float = 0.1,
    truncated: float = 0.1,
    *,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Rollout]:
    """`count` of them, one after the other. Observations are [number, -number], actions [number],
    rewards the number.

    The true successor of a row that ends an episode is numbered half a step later; what the next
    row shows is not it."""
    members, envs, horizon, _ = shape
    generator = torch.Generator().manual_seed(1)
    member, environment = torch.arange(members).view(-1, 1), torch.arange(envs)
    for start in range(first, first + count * horizon, horizon):
        rollout = allocate_rollout(horizon, members, envs, ((2,), dtype), ((1,), torch.float32))
        step = torch.arange(start, start + horizon + 1).view(-1, 1, 1)
        numbers = number(step, member, environment)
        rollout.observation.copy_(torch.stack([numbers, -numbers], -1))
        rollout.action.copy_(numbers[:-1, ..., None])
        rollout.reward.copy_(numbers[:-1])
        for end, share in ((rollout.terminated, terminated), (rollout.truncated, truncated)):
            end.copy_(torch.rand(end.shape, generator=generator) < share)
        ended = (rollout.terminated | rollout.truncated).unsqueeze(-1)
        aside = torch.stack([numbers[:-1] + 5, -numbers[:-1] - 5], -1).to(dtype)
        rollout.final_observation.copy_(torch.where(ended, aside, rollout.observation[1:]))
        yield rollout


def filled(shape: Shape, parts: list[Rollout], *, own_part: float = 1.0) -> Replay:
    replay = Replay(shape[3], parts[0], own_part=own_part)
    for part in parts:
        replay.add(part)
    return replay


def draw(replay: Replay, rows: int = DRAWN, *, steps: int = 1, seed: int = 0) -> Transitions:
    members = torch.arange(replay.members)
    gamma = torch.full((replay.members,), 0.5)
    return replay.sample(rows, replay_keys(members + seed), torch.zeros_like(members), gamma, steps)
