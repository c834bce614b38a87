"""What a critic thinks of a rollout's states, in units of reward, while it learns them in units of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from podracer_core.buffers.rollout import Rollout
from podracer_core.networks import RunningNormalizer, StackedNetwork


class StateValues:
    """V = mean + scale * critic(s), with each member's running mean and scale of its targets.

    critic     M networks, the first output of each counts
    normalize  raw observations [M, B, *obs] -> what the critic takes
    part_rows  how many rows of a member go through the critic at a time
    """

    def __init__(
        self, critic: StackedNetwork, normalize: Callable[[Tensor], Tensor], part_rows: int, members: int
    ) -> None:
        self._critic, self._normalize, self._part_rows = critic, normalize, part_rows
        self.statistics = RunningNormalizer(members, 1, critic.weights[0].device)

    def __call__(self, observation: Tensor) -> Tensor:
        """observation [K, M, E, *obs] raw -> [K, M, E]."""
        scale, mean = self.statistics.scale().float(), self.statistics.mean.float()
        values = []
        for part in torch.split(observation, max(1, self._part_rows // observation.shape[2])):
            value = self._critic(self._normalize(part.transpose(0, 1).flatten(1, 2)))[..., 0]
            values.append((value * scale + mean).view(part.shape[1], part.shape[0], part.shape[2]).transpose(0, 1))
        return torch.cat(values)

    def of(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """V of every observation and V of every true successor, [T, M, E] each."""
        value = self(rollout.observation)
        value, next_value = value[:-1], value[1:]
        # The next row is the true successor except where an episode ended; of these only cut-off ones have a future.
        cut_off = rollout.truncated & ~rollout.terminated
        if value.device.type == "cpu":
            steps = cut_off.flatten(1).any(1).nonzero().squeeze(1)
            final_value = torch.zeros_like(next_value)
            final_value[steps] = self(rollout.final_observation[steps])
        else:  # to look for these steps would make the host wait
            final_value = self(rollout.final_observation)
        return value, torch.where(cut_off, final_value, next_value)

    def reward_head(self) -> tuple[Tensor, Tensor]:
        """Weight [M, in, 1] and bias [M, 1, 1] of the critic's last layer in units of reward, float64."""
        scale, mean = self.statistics.scale().unsqueeze(2), self.statistics.mean.unsqueeze(2)
        weight, bias = self._critic.weights[-1][..., :1], self._critic.biases[-1][..., :1]
        return weight * scale, bias * scale + mean

    def load_reward_head(self, weight: Tensor, bias: Tensor) -> None:
        """Have the critic predict with such a last layer, whatever the statistics are now; shapes as of
        `reward_head`."""
        scale, mean = self.statistics.scale().unsqueeze(2), self.statistics.mean.unsqueeze(2)
        self._critic.weights[-1][..., :1].copy_(weight.to(scale.device) / scale)
        self._critic.biases[-1][..., :1].copy_((bias.to(scale.device) - mean) / scale)

    def renew(self, target: Tensor, value: Tensor, valid: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Take targets into the statistics; no prediction changes (Pop-Art). Returns targets and values normalized.

        target, value (predicted before) and valid are [M, B]; members that are not `active` [M] keep their statistics.
        """
        statistics = self.statistics
        mean, scale, started = statistics.mean.clone(), statistics.scale(), statistics.count > 0
        statistics.update(target.unsqueeze(-1), valid, active)
        new_mean, new_scale = statistics.mean, statistics.scale()
        # van Hasselt et al., 2016, equation 9: W' = W scale / scale', b' = (scale b + mean - mean') / scale'.
        weight = self._critic.weights[-1][..., :1]
        bias = self._critic.biases[-1][..., 0]
        # Before the first targets the predictions mean nothing, and are left where they are: around the new mean.
        column = started.unsqueeze(1)
        weight.mul_(torch.where(column, scale / new_scale, 1.0).float().unsqueeze(-1))
        bias.copy_(torch.where(column, (scale * bias + mean - new_mean) / new_scale, bias))
        own_mean, own_scale = torch.where(column, new_mean, mean), torch.where(column, new_scale, scale)
        return (target - new_mean.float()) / new_scale.float(), (value - own_mean.float()) / own_scale.float()
