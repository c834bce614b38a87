"""Munchausen DQN of M agents at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms import Batch, OffPolicy, squared_error
from podracer_core.networks import ValueHead

_LEAST_LOG_POLICY = -1.0  # l_0 of the paper: a bonus is not worse than this


class MunchausenDQN(OffPolicy):
    """Vieillard, Pietquin and Geist, 2020 (arXiv:2007.14430), for Discrete actions."""

    metrics = ("critic_loss", "value")
    has_actor_target = True

    @classmethod
    def make_head(
        cls,
        shared: Mapping[str, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str,
    ) -> ValueHead:
        return ValueHead(action_space, dueling=False)

    def random_fraction(self, transitions: Tensor) -> Tensor:
        starting = transitions < self.shared["learning_starts"]
        return torch.where(starting, 1.0, self.hyperparameters["exploration"])

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        target = self.target(batch)
        with torch.enable_grad():
            values = self.policy.network(batch.observation)  # [M, B, n]
            values = values.gather(-1, batch.action.unsqueeze(-1)).transpose(1, 2)  # [M, 1, B]
        loss, slope, error = squared_error(values, target, batch.weight)
        self.minimize(self.policy, values, slope, self.hyperparameters["learning_rate"])
        self.set_priorities(batch, error)
        self.follow(self.policy)
        return loss, (values.detach()[:, 0] * batch.weight).sum(1)

    def target(self, batch: Batch) -> Tensor:
        """r + α clip(τ log π(a | s), l₀, 0) + γ Σ_b π(b | s') (Q̄(s', b) - τ log π(b | s')), [M, B].

        Here π = softmax(Q̄ / τ), and the sum is τ log Σ_b exp(Q̄(s', b) / τ).
        """
        weight = self.hyperparameters["munchausen_weight"].view(-1, 1)
        temperature = self.hyperparameters["policy_temperature"].view(-1, 1, 1)
        # [M, B, n]
        log_policy = (self.policy.target(batch.observation) / temperature).log_softmax(-1)
        # [M, B]
        scaled = (temperature * log_policy).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        bonus = weight * scaled.clamp(_LEAST_LOG_POLICY, 0.0)
        soft = temperature * (self.policy.target(batch.next_observation) / temperature).logsumexp(
            -1, keepdim=True
        )
        return batch.reward + bonus + batch.discount * soft.squeeze(-1)
