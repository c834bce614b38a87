"""ModSAC, ElegantRL's modified Soft Actor-Critic, of M agents at once:
docs/algorithms/modsac.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.sac import SAC


class ModSAC(SAC):
    """SAC whose actor learns only as fast as its critic can be relied upon (a two-time-scale update
    rule).

    reliability  λ = exp(-L²), L being the running mean of the critic's loss in units of the
                 variance of its targets; the actor's loss is multiplied by λ, and it takes a step
                 only while its steps are fewer than 1 / (2 - λ) of the critic's: every second one
                 while λ is 0, every one at 1
    """

    graph_safe = True
    metrics = (*SAC.metrics, "reliability")

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        super().set_up(observation_space)
        self._running_loss = torch.ones(self.members, device=self.device)
        self._critic_steps = torch.zeros(self.members, dtype=torch.int64, device=self.device)
        self._actor_steps = torch.zeros_like(self._critic_steps)
        self.memory["running_loss"] = self._running_loss
        self.memory["critic_steps"], self.memory["actor_steps"] = (
            self._critic_steps,
            self._actor_steps,
        )

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        noise, next_noise = self.noise(2, batch.reward.shape[1], self.head.action_size).unbind(1)
        actors = self.act(batch)
        critic_loss, target = self.learn_critic(batch, next_noise, actors)
        self._running_loss.lerp_(
            _relative(critic_loss, target, batch.weight), self.hyperparameters["reliability_rate"]
        )
        reliability = (-self._running_loss.square()).exp()
        self._critic_steps += 1
        due = self._actor_steps < self._critic_steps / (2 - reliability)
        self._actor_steps += due
        actor_loss, value, entropy = self.learn_actor(batch, noise, actors, reliability, due)
        self.follow(self.critic)
        return critic_loss, actor_loss, value, entropy, self.temperature.value, reliability


def _relative(loss: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The loss [M] in units of the variance of those targets [M, B] that have a weight [M, B], at
    most 10: 1 where the critic knows nothing."""
    there = weight > 0
    count = there.sum(1, keepdim=True)
    mean = torch.where(there, target, 0.0).sum(1, keepdim=True) / count.clamp(min=1)
    variance = torch.where(there, target - mean, 0.0).square().sum(1) / (count[:, 0] - 1).clamp(
        min=1
    )
    relative = loss / variance.clamp(min=1e-8)
    return relative.clamp(max=10.0).nan_to_num(nan=10.0)
