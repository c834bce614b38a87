"""Weights for workers, and the join of their rollouts into one, in which every environment has its
place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from podracer.worker.v1 import worker_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.buffers.rollout import EpisodeStatistics, Rollout, allocate_rollout
from podracer_core.device.cuda_graphs import map_tensors
from podracer_core.errors import InvalidInput
from podracer_core.training.member_states import EnvironmentState
from podracer_learner.workers.shares import Part
from podracer_platform.carriers.inline import TensorEncoder, chunk_messages

CollectRequest = worker_service_pb2.CollectRequest

_OF_ALL = ("first_step", "episodes", "policy_version", "action_mask", "answered")


@dataclass(frozen=True, slots=True)
class Weights:
    """The messages with the actor of one version, which counts from 1 there."""

    version: int
    messages: Sequence[CollectRequest]

    @classmethod
    def of(cls, algorithm: Algorithm, encoder: TensorEncoder) -> Weights:
        """The weights of an algorithm's newest actor."""
        tensors, chunks = encoder.encode(algorithm.actor_state())
        version = algorithm.version + 1
        update = worker_service_pb2.ActorUpdate(
            policy_version=version, normalizer_version=version, tensors=tensors
        )
        header = CollectRequest(actor_update=update)
        return cls(version, [header, *chunk_messages(CollectRequest, chunks)])


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Join rollouts of the same members in different environments along the environment axis. The
    result is as old as its oldest part; each row keeps the log-probability under the policy that
    acted.

    Raises InvalidInput if only some have action masks.
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
            field.name: torch.stack(
                [getattr(rollout.episodes, field.name) for rollout in rollouts]
            ).sum(0)
            for field in fields(EpisodeStatistics)
        }
    )
    masks = [rollout.action_mask for rollout in rollouts if rollout.action_mask is not None]
    if len(masks) not in (0, len(rollouts)):
        raise InvalidInput(
            f"{len(masks)} of {len(rollouts)} workers sent action masks; all or none have to"
        )
    live_envs = sum(rollout.live_envs for rollout in rollouts)
    return replace(
        rollouts[0],
        **joined,
        episodes=episodes,
        policy_version=min(rollout.policy_version for rollout in rollouts),
        action_mask=torch.cat(masks, 2) if masks else None,
        answered=None if live_envs == joined["reward"].shape[2] else live_envs,
    )


def whole_rollout(
    parts: Sequence[Part],
    rollouts: Sequence[Rollout | None],
    standing: Tensor | None,
    device: torch.device,
) -> Rollout:
    """All parts joined on the device; missing parts have no valid row. At least one part has
    arrived.

    standing [M, N, *obs]: as of `absent_rows`, of all environments.
    """
    like = next(rollout for rollout in rollouts if rollout is not None)
    present = []
    for (first, count), rollout in zip(parts, rollouts, strict=True):
        stands = None if standing is None else standing[:, first : first + count]
        present.append(absent_rows(like, count, stands) if rollout is None else rollout)
    # workers have brought theirs by different carriers, some to the device already
    if device.type != "cpu":
        present = [moved_to(rollout, device) for rollout in present]
    return join_rollouts(present)


def join_states(parts: Sequence[EnvironmentState | None]) -> EnvironmentState | None:
    """The joined states of one member's environments; None if those of a part are unknown."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return {
        name: torch.cat([part[name] for part in known]) if one.dim() else one
        for name, one in known[0].items()
    }


def absent_rows(like: Rollout, environments: int, standing: Tensor | None) -> Rollout:
    """A rollout of `environments` of each member that have not answered, of the shapes of `like`:
    no row is valid.

    standing [M, environments, *obs]: the observations after their last rows. They are repeated, so
    that those rows keep their successors; None: zeros, as there were no rows yet."""
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
    """The rollout on another device."""
    return map_tensors(rollout, lambda tensor: tensor.to(device, non_blocking=True))
