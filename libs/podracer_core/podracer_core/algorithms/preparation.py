"""The way from a rollout to what a policy gradient learns from: advantages, targets and weights of
all its rows, and minibatches of these. `ReturnScale` divides rewards, PPO's and FlashSAC's
(arXiv:2604.04539), so that returns have a deviation of 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from podracer_core.buffers import Rollout
from podracer_core.kernels import sums_over_time
from podracer_core.networks import NetworkActor, PolicyHead, RunningNormalizer, StackedNetwork

_EPSILON = 1e-8
_MOST_REWARD = 10.0
"""Scaled rewards are clipped to ± this, as VecNormalize of Stable-Baselines3 does."""

_RUNNING = "running_return"


class ReturnScale:
    """Running statistics of each member's discounted return so far, G = r + gamma G of the step
    before.

    An episode begins with G = 0, as in VecNormalize of Stable-Baselines3. In the code of FlashSAC's
    authors its last step begins with 0, and the next episode inherits that step's reward:
    `drops_last` does the same.

    memory   tensors [M, …] that a member's future depends on, by name
    """

    def __init__(
        self,
        members: int,
        limit: float,
        device: torch.device | str = "cpu",
        *,
        drops_last: bool = False,
    ) -> None:
        """`limit`: no return is beyond ± `limit` after the division; inf sets none."""
        self._limit, self._drops_last = limit, drops_last
        self._statistics = RunningNormalizer(members, 1, device)
        self._largest = torch.zeros(members, device=device)
        self._running: Tensor | None = None  # [M, E], of the episodes that go on
        self._loaded: dict[int, Tensor] = {}  # of members, for the first rollout
        self.memory = {
            "return_count": self._statistics.count,
            "return_mean": self._statistics.mean,
            "return_variance": self._statistics.variance,
            "largest_return": self._largest,
        }

    @property
    def statistics(self) -> RunningNormalizer:
        """Those of the returns."""
        return self._statistics

    def running(self, member: int) -> dict[str, Tensor]:
        """A copy of one member's returns of the episodes that go on, [E]; empty before there are
        any."""
        running = self._loaded.get(member) if self._running is None else self._running[member]
        return {} if running is None else {_RUNNING: running.clone()}

    def load_running(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Go on with what `running` gave, where as many environments go on; otherwise from 0."""
        value = state.get(_RUNNING)
        if value is None:
            return
        if self._running is None:
            self._loaded[member] = value
        elif value.shape == self._running[member].shape:
            self._running[member] = value

    def divisor(self) -> Tensor:
        """max(√Var G, max |G| / limit), [M]."""
        deviation = (self._statistics.variance[:, 0] + _EPSILON).sqrt().float()
        return torch.maximum(deviation, self._largest / self._limit)

    def begin(self, rollout: Rollout) -> bool:
        """Make room for the returns of its environments. True where there was none: they begin at
        0, or as loaded."""
        if self._running is not None and self._running.shape == rollout.reward.shape[1:]:
            return False
        self._running = torch.zeros_like(rollout.reward[0])
        for member, value in self._loaded.items():
            if value.shape == self._running[member].shape:
                self._running[member] = value
        self._loaded = {}
        return True

    def update(self, rollout: Rollout, gamma: Tensor, active: Tensor) -> None:
        """Take in the rewards of a rollout, which goes on where the one before ended; gamma [M].
        After `begin`."""
        assert self._running is not None
        stops = rollout.terminated | rollout.truncated | ~rollout.valid
        decay = torch.where(stops, 0.0, gamma.unsqueeze(1))
        if not self._drops_last:  # it is the row before that cuts
            decay = torch.cat([gamma.view(1, -1, 1).expand_as(decay[:1]), decay[:-1]])
        returns = sums_over_time(
            torch.where(rollout.valid, rollout.reward, 0.0), decay, self._running
        )
        running = returns[-1]
        goes_on = running.isfinite() if self._drops_last else running.isfinite() & ~stops[-1]
        self._running.copy_(torch.where(goes_on, running, 0.0))
        rows = returns.transpose(0, 1).flatten(1)
        self._statistics.update(
            rows.unsqueeze(-1), rollout.valid.transpose(0, 1).flatten(1), active
        )
        largest = torch.maximum(self._largest, rows.abs().amax(1))
        torch.where(active & largest.isfinite(), largest, self._largest, out=self._largest)

    def scaled(self, rollout: Rollout, gamma: Tensor, active: Tensor) -> Tensor:
        """The rewards that are learned from, [T, M, E]. They count in the statistics first: see
        `update`."""
        self.update(rollout, gamma, active)
        reward = rollout.reward / self.divisor().unsqueeze(1)
        return reward.clamp(-_MOST_REWARD, _MOST_REWARD)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows of every member, ready for the loss. B is the number of rows of one member.

    observation   [M, B, obs]      normalized; of images the raw pixels
    action        [M, B, *action]  as the policy sampled it
    action_mask   [M, B, n]        bool, the actions that were allowed; None where all always are
    log_prob      [M, B]           of the action under the proximal policy: the one at the start of
                                   the update
    advantage     [M, B]
    target        [M, B]           of the value, normalized
    value         [M, B]           the critic's at the start of the update, normalized
    weight        [M, B]           0 where a row is not valid, less where an older policy acted
    """

    observation: Tensor
    action: Tensor
    action_mask: Tensor | None
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    weight: Tensor

    def split(self, rows: int) -> list[Minibatch]:
        """Parts of at most `rows` rows."""
        count = self.weight.shape[1]
        if count <= rows:
            return [self]
        return [self._part(slice(start, start + rows)) for start in range(0, count, rows)]

    def _part(self, rows: slice) -> Minibatch:
        columns = (getattr(self, field.name) for field in fields(self))
        return Minibatch(*(None if column is None else column[:, rows] for column in columns))  # type: ignore[arg-type]


class RolloutRows:
    """All rows of a rollout, R = T * E of each member, side by side in one tensor: a new order is a
    single gather.

    observation, action and action_mask are [M, R, _]; numbers are log_prob, advantage, target,
    value and weight, [M, R] each; valid [M, R]. Pixels (uint8) stay what they are, in a tensor of
    their own. `columns` [M, R, _] float32 has all else in this order, and the action mask where
    `masked`."""

    def __init__(
        self,
        head: PolicyHead,
        observation: Tensor,
        action: Tensor,
        action_mask: Tensor | None,
        numbers: list[Tensor],
        valid: Tensor,
    ) -> None:
        self._head = head
        self._pixels = observation if observation.dtype == torch.uint8 else None
        parts = [observation[..., :0].float() if self._pixels is not None else observation, action]
        parts += [action[..., :0] if action_mask is None else action_mask, torch.stack(numbers, -1)]
        self.masked = action_mask is not None
        self._widths = [part.shape[-1] for part in parts]
        # A broken row may hold NaN, which no weight of zero would keep out of the gradient.
        columns = torch.where(valid.unsqueeze(-1), torch.cat(parts, -1), 0.0)
        # torch.where keeps its inputs' order of dimensions, that of a rollout which has ended early
        self.columns = columns.contiguous()

    @property
    def count(self) -> int:
        """R."""
        return self.columns.shape[1]

    def minibatches(self, size: int, order: Tensor | None = None) -> list[Minibatch]:
        """Every row once, at most `size` of each member at a time, in the `order` [M, R] of the
        member if given."""
        columns, pixels = self.columns, self._pixels
        if order is not None:
            offset = torch.arange(0, order.numel(), order.shape[1], device=order.device).unsqueeze(
                1
            )
            index = (order + offset).view(-1)
            columns = columns.view(index.shape[0], -1).index_select(0, index).view_as(columns)
            if pixels is not None:
                pixels = pixels.view(index.shape[0], -1).index_select(0, index).view_as(pixels)
        observation, action, mask, numbers = columns.split_with_sizes(self._widths, -1)
        whole = Minibatch(
            observation if pixels is None else pixels,
            action.reshape(*action.shape[:2], *self._head.action_shape).to(self._head.action_dtype),
            mask.bool() if self.masked else None,
            *numbers.permute(2, 0, 1).contiguous(),
        )
        return whole.split(size)


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
        self.rewards = rewards
        self.statistics = RunningNormalizer(members, 1, critic.weights[0].device)

    @property
    def normalizers(self) -> dict[str, RunningNormalizer]:
        """Those of targets and rewards, by name."""
        own = {"values": self.statistics}
        return own if self.rewards is None else own | {"rewards": self.rewards.statistics}

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
        unit = 1.0 if self.rewards is None else self.rewards.divisor().double()[:, None, None]
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
    values                    the critic's, with the scale of the rewards
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
        self._actor, self._head, self.values, self.part_rows = actor, head, values, part_rows
        self._shared, self._hyperparameters = shared, hyperparameters
        self._sees_images = actor.network.architecture.image is not None

    def rows(
        self, rollout: Rollout, active: Tensor, *, stale: bool
    ) -> tuple[RolloutRows, dict[str, Tensor]]:
        """All rows of a rollout, and first metrics. `stale`: the actor that took it was not the
        present one.

        The statistics of rewards and targets change with it, but for members that are not `active`
        [M].
        """
        reward, rewards = rollout.reward, self.values.rewards
        if rewards is not None:
            reward = rewards.scaled(rollout, self._hyperparameters["gamma"], active)
        value, next_value = self.values.of(rollout)
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
            reward,
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
            target, value = self.values.renew(target, value, valid, active)
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
        parts = torch.split(observation, self.part_rows, 1)
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
