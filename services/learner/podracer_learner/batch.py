"""Rollouts of several workers put together into one, in which every environment has its place whoever has answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout
from podracer_core.device.cuda_graphs import map_tensors
from podracer_core.errors import InvalidInput

__all__ = ["absent_rows", "join_rollouts", "moved_to"]

_OF_ALL = ("first_step", "episodes", "policy_version", "action_mask", "answered")


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts of the same members in different environments, put side by side along the environment axis. It is as old
    as its oldest part; each row keeps the log-probability under the policy that acted.

    Raises InvalidInput where only some have action masks.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    joined = {
        field.name: torch.cat([getattr(rollout, field.name) for rollout in rollouts], 2)
        for field in fields(Rollout)
        if field.name not in _OF_ALL
    }
    episodes = EpisodeStatistics(
        **{
            field.name: torch.stack([getattr(rollout.episodes, field.name) for rollout in rollouts]).sum(0)
            for field in fields(EpisodeStatistics)
        }
    )
    masks = [rollout.action_mask for rollout in rollouts if rollout.action_mask is not None]
    if len(masks) not in (0, len(rollouts)):
        raise InvalidInput(f"{len(masks)} of {len(rollouts)} workers sent action masks; all or none have to")
    live_envs = sum(rollout.live_envs for rollout in rollouts)
    return replace(
        rollouts[0],
        **joined,
        episodes=episodes,
        policy_version=min(rollout.policy_version for rollout in rollouts),
        action_mask=torch.cat(masks, 2) if masks else None,
        answered=None if live_envs == joined["reward"].shape[2] else live_envs,
    )


def absent_rows(like: Rollout, environments: int, standing: Tensor | None) -> Rollout:
    """A rollout of `environments` of each member that have not answered, of the shapes of `like`: no row is valid.

    standing [M, environments, *obs]: the observations at which their last rows ended. They stay there, so that those
    rows keep their successors; None: zeros, nobody has seen them yet.
    """
    rollout = allocate_rollout(
        like.horizon,
        like.members,
        environments,
        (like.observation.shape[3:], like.observation.dtype),
        (like.action.shape[3:], like.action.dtype),
        like.reward.device,
        0 if like.action_mask is None else like.action_mask.shape[-1],
    )
    rollout.valid.fill_(False)
    if standing is not None:
        rollout.observation.copy_(standing)
        rollout.final_observation.copy_(standing)
    return replace(rollout, policy_version=like.policy_version, answered=0)


def moved_to(rollout: Rollout, device: torch.device) -> Rollout:
    """The same on another device."""
    return map_tensors(rollout, lambda tensor: tensor.to(device, non_blocking=True))
