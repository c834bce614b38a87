"""CrossQ of M agents at once: docs/algorithms/crossq.md has the equations and all deviations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch, without_lost_rows
from podracer_core.algorithms.sac import SAC
from podracer_core.algorithms.values import EnsemblePass


class CrossQ(SAC):
    """Bhatt et al., 2024 (arXiv:1902.05605): SAC without target networks; batch normalization, by
    the statistics of (s, a) and (s', a') together, keeps the critics' own values of s' fit to learn
    from."""

    graph_safe = True
    body = "normalized"
    has_critic_target = False

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        super().set_up(observation_space)
        self.slow_interval = self.shared["policy_delay"]
        for network in self.networks.values():
            network.optimizer.beta1 = 0.5
        # of the last step that the actor took
        self._actor_metrics = torch.zeros(3, self.members, device=self.device)

    @classmethod
    def actor_sizes(cls, shared: Any) -> Sequence[int]:
        sizes: Sequence[int] = shared["actor_hidden_sizes"]
        return sizes

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        batch = without_lost_rows(batch)
        noise, next_noise = self.noise(2, batch.reward.shape[1], self.head.action_size).unbind(1)
        critic_loss, _ = self.learn_critic(batch, next_noise)
        if self.is_slow_step:
            self._actor_metrics.copy_(torch.stack(self.learn_actor(batch, noise)))
        return critic_loss, *self._actor_metrics, self.temperature.value

    def values_of(self, batch: Batch, next_action: Tensor) -> tuple[EnsemblePass, Tensor]:
        """Values from one pass for (s, a) and (s', a'), normalized by the statistics of both
        (section 3.2)."""
        observation = torch.cat([batch.observation, batch.next_observation], 1)
        action = torch.cat([batch.action, next_action], 1)
        critics = EnsemblePass(
            self.critic.network, observation, action, by_batch=True, rows=batch.reward.shape[1]
        )
        return critics, critics.rest.squeeze(-1)
