"""The way from a rollout to what a policy gradient learns from: advantages, targets and weights of
all its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from podracer_core.algorithms.minibatch import RolloutRows
from podracer_core.algorithms.return_scale import ReturnScale
from podracer_core.buffers import Rollout
from podracer_core.kernels import sums_over_time
from podracer_core.networks import NetworkActor, PolicyHead, RunningNormalizer, StackedNetwork


class StateValues:
    """V = mean + scale * critic(s), with each member's running mean and scale of its targets.

    critic     M networks, the first output of each counts
    normalize  raw observations [M, B, *obs] -> what the critic takes
    part_rows  how many rows of a member go through the critic at a time
    rewards    what rewards have been divided by, if they were
    """

    def __init__(
        self,
        critic: StackedNetwork,
        normalize: Callable[[Tensor], Tensor],
        part_rows: int,
        members: int,
        rewards: ReturnScale | None = None,
    ) -> None:
        self._critic = critic
        self._normalize = normalize
        self._part_rows = part_rows
        self._rewards = rewards
        self.statistics = RunningNormalizer(members, 1, critic.weights[0].device)

    def __call__(self, observation: Tensor) -> Tensor:
        """observation [K, M, E, *obs] raw -> [K, M, E]."""
        scale, mean = self.statistics.scale().float(), self.statistics.mean.float()
        values = []
        for part in torch.split(observation, max(1, self._part_rows // observation.shape[2])):
            value = self._critic(self._normalize(part.transpose(0, 1).flatten(1, 2)))[..., 0]
            values.append(
                (value * scale + mean)
                .view(part.shape[1], part.shape[0], part.shape[2])
                .transpose(0, 1)
            )
        return torch.cat(values)

    def of(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """V of every observation and V of every true successor, [T, M, E] each."""
        value = self(rollout.observation)
        value, next_value = value[:-1], value[1:]
        # The next row is the true successor except where an episode ended; of these only cut-off
        # ones have a future.
        cut_off = rollout.truncated & ~rollout.terminated
        if value.device.type == "cpu":
            steps = cut_off.flatten(1).any(1).nonzero().squeeze(1)
            final_value = torch.zeros_like(next_value)
            final_value[steps] = self(rollout.final_observation[steps])
        else:  # to look for these steps would make the host wait
            final_value = self(rollout.final_observation)
        return value, torch.where(cut_off, final_value, next_value)

    def reward_head(self) -> tuple[Tensor, Tensor]:
        """Weight [M, in, 1] and bias [M, 1, 1] of the critic's last layer in units of reward,
        float64."""
        scale, mean = self._units()
        weight, bias = self._critic.weights[-1][..., :1], self._critic.biases[-1][..., :1]
        return weight * scale, bias * scale + mean

    def load_reward_head(self, weight: Tensor, bias: Tensor) -> None:
        """Have the critic predict with such a last layer, whatever the statistics are now; shapes
        as of `reward_head`."""
        scale, mean = self._units()
        self._critic.weights[-1][..., :1].copy_(weight.to(scale.device) / scale)
        self._critic.biases[-1][..., :1].copy_((bias.to(scale.device) - mean) / scale)

    def denormalize(self, member: int) -> None:
        """Give the member's last layer the units of its targets: for a critic that has been
        normalized before."""
        weight, bias = (head[member] for head in self.reward_head())
        self.statistics.load_member_state(member, {})
        unit = self._units()[0][member]
        self._critic.weights[-1][member][..., :1] = weight / unit
        self._critic.biases[-1][member][..., :1] = bias / unit

    def _units(self) -> tuple[Tensor, Tensor]:
        """Scale and mean [M, 1, 1] of predictions in units of reward, float64."""
        unit = 1.0 if self._rewards is None else self._rewards.divisor().double()[:, None, None]
        return self.statistics.scale().unsqueeze(2) * unit, self.statistics.mean.unsqueeze(2) * unit

    def renew(
        self, target: Tensor, value: Tensor, valid: Tensor, active: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take targets into the statistics; no prediction changes (Pop-Art). Returns targets and
        values normalized.

        target, value (predicted before) and valid are [M, B]; members that are not `active` [M]
        keep their statistics."""
        statistics = self.statistics
        mean, scale, started = statistics.mean.clone(), statistics.scale(), statistics.count > 0
        statistics.update(target.unsqueeze(-1), valid, active)
        new_mean, new_scale = statistics.mean, statistics.scale()
        # van Hasselt et al., 2016, equation 9: W' = W scale / scale', b' = (scale b + mean - mean')
        # / scale'.
        weight = self._critic.weights[-1][..., :1]
        bias = self._critic.biases[-1][..., 0]
        # Before the first targets the predictions mean nothing, and are left where they are: around
        # the new mean.
        column = started.unsqueeze(1)
        weight.mul_(torch.where(column, scale / new_scale, 1.0).float().unsqueeze(-1))
        bias.copy_(torch.where(column, (scale * bias + mean - new_mean) / new_scale, bias))
        own_mean = torch.where(column, new_mean, mean)
        own_scale = torch.where(column, new_scale, scale)
        return (target - new_mean.float()) / new_scale.float(), (
            value - own_mean.float()
        ) / own_scale.float()


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: Tensor,
    gae_lambda: Tensor,
    importance: Tensor | None = None,
) -> Tensor:
    """Advantages [T, M, E]; every other tensor is [T, M, E] too, gamma and gae_lambda are [M].

    Schulman et al., 2016 (arXiv:1506.02438), equations 11, 12 and 16:
        delta[t] = r[t] + gamma * (1 - terminated[t]) * V(s'[t]) - V(s[t])
        A[t]     = delta[t] + gamma * lambda * (1 - ended[t]) * A[t + 1]
    next_value is V of the true successor s', before any reset, so an episode that a time limit cut
    off bootstraps from where it was; only a terminated one has no future. The sum stops at both. A
    row that is not valid has the advantage 0, and the rows before it do not look past it.

    importance [T, M, E] is rho = min(1, pi / mu) of a rollout that an older policy mu took: then
    this is V-trace (Espeholt et al., 2018, arXiv:1802.01561, section 4.1) with c = lambda * rho,
    which is the above where pi = mu:
        A[t] = delta[t] + gamma * lambda * (1 - ended[t]) * rho[t + 1] * A[t + 1]
    The policy's gradient weighs A[t] with rho[t], and the value's target is V(s[t]) + rho[t] *
    A[t]."""
    discount = gamma.view(-1, 1)
    delta = reward + discount * torch.where(terminated, 0.0, next_value) - value
    decay = (discount * gae_lambda.view(-1, 1)).expand_as(delta)
    if importance is not None:
        importance = torch.where(valid, importance, 0.0)
        decay = torch.cat([decay[:-1] * importance[1:], decay[-1:]])
    delta = torch.where(valid, delta, 0.0)
    decay = torch.where(valid & ~(terminated | truncated), decay, 0.0)
    return sums_over_time(delta, decay, torch.zeros_like(delta[0]), reverse=True)


def normalized_advantages(advantages: Tensor, valid: Tensor) -> Tensor:
    """Advantages [M, B] with mean 0 and standard deviation 1 over each member's valid rows, by
    valid [M, B]."""
    count = valid.sum(1, keepdim=True).clamp(min=1)
    centred = torch.where(
        valid, advantages - torch.where(valid, advantages, 0.0).sum(1, keepdim=True) / count, 0.0
    )
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    return centred / (deviation + 1e-8)


class Preparation:
    """The parts of an update that depend on the policy and the critic at its start.

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

    def rows(
        self, rollout: Rollout, active: Tensor, *, stale: bool
    ) -> tuple[RolloutRows, dict[str, Tensor]]:
        """All rows of a rollout, and first metrics. `stale`: the actor that took it was not the
        present one.

        The statistics of the targets change with it, but for members that are not `active` [M].
        """
        value, next_value = self._values.of(rollout)
        observation = by_member(rollout.observation[:-1])
        # whose pixels become numbers when they are needed: they take four times the memory
        if not self._sees_images:
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
        valid, proximal, advantage, target, value, weight, error = (
            by_member(rows).squeeze(-1) for rows in tensors
        )
        explained = 1 - _variance(error, valid) / _variance(target, valid)
        if self._shared["normalize_values"]:
            target, value = self._values.renew(target, value, valid, active)
        if self._shared["normalize_advantages"]:
            advantage = normalized_advantages(advantage, valid)
        numbers = [proximal, advantage, target, value, weight]
        rows = RolloutRows(
            self._head, observation, by_member(rollout.action), action_mask, numbers, valid
        )
        return rows, {"explained_variance": explained}

    def seen(self, observation: Tensor) -> Tensor:
        """Inputs of the networks from rows [M, B, obs]."""
        return self._actor.normalize(observation) if self._sees_images else observation

    def _log_prob(
        self, observation: Tensor, rollout: Rollout, action_mask: Tensor | None
    ) -> Tensor:
        """Log-probability [T, M, E] of the actions by the present policy: the proximal one of a
        stale rollout."""
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
    """Variance over each member's valid rows: values, valid [M, B] -> [M]."""
    weight = valid / valid.sum(1, keepdim=True).clamp(min=1)
    rows = torch.where(valid, values, 0.0)
    mean = (weight * rows).sum(1, keepdim=True)
    return (weight * (rows - mean).square()).sum(1)
