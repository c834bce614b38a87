"""Twin Delayed Deep Deterministic Policy Gradient of M agents at once: docs/algorithms/td3.md has
the equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.ddpg import DDPG
from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.values import action_values


class TD3(DDPG):
    """Fujimoto et al., 2018 (arXiv:1802.09477), algorithm 1, for bounded Box actions; see
    `Algorithm`."""

    graph_safe = True
    critic_count = 2

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        super().set_up(observation_space)
        self.slow_interval = self.shared["policy_delay"]
        # of the last step that the actor took
        self._actor_loss = torch.zeros(self.members, device=self.device)

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        critic_loss, values = self.learn_critic(batch, self.next_values(batch))
        if self.is_slow_step:
            self._actor_loss.copy_(self.learn_actor(batch)[0])
            self.follow(self.policy, self.critic)
        return critic_loss, self._actor_loss, (values[:, 0] * batch.weight).sum(1)

    def next_values(self, batch: Batch) -> Tensor:
        """Q̄_i(s', clip(π̄(s') + clip(ε, ±c), ±1)), [M, 2, B]: target policy smoothing (equation
        14). The smaller of the twins counts (equation 10)."""
        deviation = self.hyperparameters["target_noise"].view(-1, 1, 1)
        limit = self.hyperparameters["target_noise_clip"].view(-1, 1, 1)
        noise = self.noise(batch.reward.shape[1], self.head.action_size) * deviation
        noise = torch.minimum(torch.maximum(noise, -limit), limit)
        action = (self.policy.target(batch.next_observation).tanh() + noise).clamp(-1.0, 1.0)
        return action_values(self.critic.target, batch.next_observation, action)
