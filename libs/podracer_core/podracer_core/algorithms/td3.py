"""Twin Delayed Deep Deterministic Policy Gradient of M agents at once: docs/algorithms/td3.md has the equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.off_policy import OffPolicy
from podracer_core.algorithms.values import action_values, squared_error
from podracer_core.networks import DeterministicHead


class TD3(OffPolicy):
    """Fujimoto et al., 2018 (arXiv:1802.09477), algorithm 1, for bounded Box actions; see `Algorithm`."""

    metrics = ("critic_loss", "actor_loss", "value")
    has_actor_target = True
    graph_safe = True
    box_head = DeterministicHead

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self.head = cast("DeterministicHead", self.actor.head)
        self.critic = self.add_critic("critic", observation_space, 2, action_size=self.head.action_size)
        self.slow_interval = self.shared["policy_delay"]
        self._actor_loss = torch.zeros(self.members, device=self.device)  # of the last step that the actor took

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        target = batch.reward + batch.discount * self.next_value(batch)
        with torch.enable_grad():
            values = action_values(self.critic.network, batch.observation, batch.action)
        critic_loss, slope, error = squared_error(values, target, batch.weight)
        self.minimize(self.critic, values, slope, self.hyperparameters["learning_rate"])
        self.set_priorities(batch, error)
        if self.is_slow_step:
            self._actor_loss.copy_(self.learn_actor(batch))
            self.follow(self.policy, self.critic)
        return critic_loss, self._actor_loss, (values.detach()[:, 0] * batch.weight).sum(1)

    def next_value(self, batch: Batch) -> Tensor:
        """min_i Q̄_i(s', clip(π̄(s') + clip(ε, ±c), ±1)), [M, B]: target policy smoothing (equation 14) and the smaller
        of the twins (equation 10)."""
        deviation = self.hyperparameters["target_noise"].view(-1, 1, 1)
        limit = self.hyperparameters["target_noise_clip"].view(-1, 1, 1)
        noise = self.noise(batch.reward.shape[1], self.head.action_size) * deviation
        noise = torch.minimum(torch.maximum(noise, -limit), limit)
        action = (self.policy.target(batch.next_observation).tanh() + noise).clamp(-1.0, 1.0)
        return action_values(self.critic.target, batch.next_observation, action).amin(1)

    def learn_actor(self, batch: Batch) -> Tensor:
        """Up the first critic's value of the actor's own action; returns the loss [M]."""
        with torch.enable_grad():
            action = self.policy.network(batch.observation).tanh()
            value = action_values(self.critic.first, batch.observation, action).squeeze(1)
            loss = -(value * batch.weight).sum(1) + self.h_term_loss()
        rate = self.hyperparameters["learning_rate"] * self.hyperparameters["actor_learning_rate_scale"]
        self.minimize(self.policy, loss, None, rate)
        return loss.detach()
