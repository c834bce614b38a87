"""Deep Deterministic Policy Gradient of M agents at once: docs/algorithms/ddpg.md has the equations."""

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


class DDPG(OffPolicy):
    """Lillicrap et al., 2016 (arXiv:1509.02971), algorithm 1, for bounded Box actions; see `Algorithm`."""

    graph_safe = True
    box_head = DeterministicHead
    metrics = ("critic_loss", "actor_loss", "value")
    has_actor_target = True

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self.head = cast("DeterministicHead", self.actor.head)
        self.critic = self.add_critic("critic", observation_space, 1, action_size=self.head.action_size)

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        rate = self.hyperparameters["learning_rate"]
        next_action = self.policy.target(batch.next_observation).tanh()
        next_value = action_values(self.critic.target, batch.next_observation, next_action).squeeze(1)
        target = batch.reward + batch.discount * next_value
        with torch.enable_grad():
            values = action_values(self.critic.network, batch.observation, batch.action)
        critic_loss, slope, error = squared_error(values, target, batch.weight)
        self.minimize(self.critic, values, slope, rate)
        self.set_priorities(batch, error)

        with torch.enable_grad():
            action = self.policy.network(batch.observation).tanh()
            value = action_values(self.critic.frozen, batch.observation, action).squeeze(1)
            actor_loss = -(value * batch.weight).sum(1) + self.h_term_loss()
        self.minimize(self.policy, actor_loss, None, rate * self.hyperparameters["actor_learning_rate_scale"])
        self.follow(self.policy, self.critic)
        return critic_loss, actor_loss.detach(), (value.detach() * batch.weight).sum(1)
