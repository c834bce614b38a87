"""From a rollout to what a policy gradient learns from: advantages, targets and weights of all its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from podracer_core.algorithms.advantages import generalized_advantages, normalized_advantages
from podracer_core.algorithms.minibatch import RolloutRows
from podracer_core.algorithms.state_values import StateValues
from podracer_core.buffers.rollout import Rollout
from podracer_core.networks import NetworkActor, PolicyHead


class Preparation:
    """What of an update depends on the policy and the critic at its start.

    shared, hyperparameters   the algorithm's own; the latter are tensors [M], which may change
    part_rows                 how many rows of a member go through a network at a time
    """

    def __init__(
        self,
        actor: NetworkActor,
        head: PolicyHead,
        values: StateValues,
        shared: Mapping[str, Any],
        hyperparameters: Mapping[str, Tensor],
        part_rows: int,
    ) -> None:
        self._actor, self._head, self._values, self._part_rows = actor, head, values, part_rows
        self._shared, self._hyperparameters = shared, hyperparameters
        self._sees_images = actor.network.architecture.image is not None

    def rows(self, rollout: Rollout, active: Tensor, *, stale: bool) -> tuple[RolloutRows, dict[str, Tensor]]:
        """All rows of a rollout, and first metrics. `stale`: the actor that took it was not the present one.

        The statistics of the targets change with it, but for members that are not `active` [M].
        """
        value, next_value = self._values.of(rollout)
        observation = by_member(rollout.observation[:-1])
        if not self._sees_images:  # whose pixels become numbers when they are needed: they take four times the memory
            observation = self._actor.normalize(observation)
        action_mask = None if rollout.action_mask is None else by_member(rollout.action_mask[:-1])
        proximal, importance = rollout.log_prob, None
        if stale:
            proximal = self._log_prob(observation, rollout, action_mask)
            importance = (proximal - rollout.log_prob).exp().clamp(max=1.0)
        advantage = generalized_advantages(
            rollout.reward,
            value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            rollout.valid,
            self._hyperparameters["gamma"],
            self._hyperparameters["gae_lambda"],
            importance,
        )
        weight, error = rollout.valid.float(), advantage
        if importance is not None:
            weight, error = torch.where(rollout.valid, importance, 0.0), importance * advantage
        target = torch.where(rollout.valid, value + error, 0.0)

        tensors = (rollout.valid, proximal, advantage, target, value, weight, error)
        valid, proximal, advantage, target, value, weight, error = (by_member(rows).squeeze(-1) for rows in tensors)
        explained = 1 - _variance(error, valid) / _variance(target, valid)
        if self._shared["normalize_values"]:
            target, value = self._values.renew(target, value, valid, active)
        if self._shared["normalize_advantages"]:
            advantage = normalized_advantages(advantage, valid)
        numbers = [proximal, advantage, target, value, weight]
        rows = RolloutRows(self._head, observation, by_member(rollout.action), action_mask, numbers, valid)
        return rows, {"explained_variance": explained}

    def seen(self, observation: Tensor) -> Tensor:
        """What the networks take of rows [M, B, obs]."""
        return self._actor.normalize(observation) if self._sees_images else observation

    def _log_prob(self, observation: Tensor, rollout: Rollout, action_mask: Tensor | None) -> Tensor:
        """Of the rollout's actions under the present policy, [T, M, E]: the proximal one of a stale rollout."""
        parts = torch.split(observation, self._part_rows, 1)
        output = torch.cat([self._actor.output(self.seen(part)) for part in parts], 1)
        if action_mask is not None:
            output = self._head.allow(output, action_mask)
        action = rollout.action.transpose(0, 1).flatten(1, 2)
        log_prob = self._head.density(output, self._actor.settings, action).log_prob
        return log_prob.view(rollout.members, rollout.horizon, -1).transpose(0, 1)


def by_member(tensor: Tensor) -> Tensor:
    """A rollout's [T, M, E, …] as [M, T * E, columns]."""
    horizon, members, num_envs = tensor.shape[:3]
    return tensor.transpose(0, 1).reshape(members, horizon * num_envs, -1)


def _variance(values: Tensor, valid: Tensor) -> Tensor:
    """Of each member's valid rows: values, valid [M, B] -> [M]."""
    weight = valid / valid.sum(1, keepdim=True).clamp(min=1)
    rows = torch.where(valid, values, 0.0)
    mean = (weight * rows).sum(1, keepdim=True)
    return (weight * (rows - mean).square()).sum(1)
