"""Randomized Ensembled Double Q-learning of M agents at once: docs/algorithms/redq.md has the
equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.sac import SAC
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import permutation, subset_keys


class REDQ(SAC):
    """Chen et al., 2021 (arXiv:2101.05982), algorithm 1: SAC with N critics, of which a random M
    give each target, G gradient steps for each transition, and one step of the actor after every G
    of them.

    N is `ensemble_size`, M `subset_size`, G `updates_per_step`.
    """

    graph_safe = True

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        super().set_up(observation_space)
        if self.shared["subset_size"] > self.critic_count:
            message = (
                f"subset_size must be at most ensemble_size, {self.critic_count}, not "
                f"{self.shared['subset_size']}"
            )
            raise InvalidInput(message, field="subset_size")
        self.slow_interval = max(1, round(self.shared["updates_per_step"]))
        # of the last step that the actor took
        self._actor_metrics = torch.zeros(3, self.members, device=self.device)

    @property
    def critic_count(self) -> int:
        size: int = self.shared["ensemble_size"]
        return size

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        noise, next_noise = self.noise(2, batch.reward.shape[1], self.head.action_size).unbind(1)
        critic_loss, _ = self.learn_critic(batch, next_noise)
        self.follow(self.critic)
        if self.is_slow_step:
            self._actor_metrics.copy_(torch.stack(self.learn_actor(batch, noise)))
        return critic_loss, *self._actor_metrics, self.temperature.value

    def pessimistic(self, values: Tensor) -> Tensor:
        """The least of M of the N values, drawn anew for each gradient step and member (equation
        1)."""
        order = permutation(subset_keys(self.seeds), self.update_count, self.critic_count)
        chosen = order[:, : self.shared["subset_size"], None].expand(-1, -1, values.shape[2])
        return values.gather(1, chosen).amin(1)

    def optimistic(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of all N (algorithm 1, line 12)."""
        return values.mean(1), torch.full_like(values, 1.0 / values.shape[1])
