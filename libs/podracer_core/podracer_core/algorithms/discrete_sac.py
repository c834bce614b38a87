"""Soft Actor-Critic for Discrete actions, of M agents at once: docs/algorithms/discrete_sac.md has
the equations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.off_policy import OffPolicy
from podracer_core.algorithms.sac import Temperature
from podracer_core.algorithms.values import ensemble_outputs, squared_error
from podracer_core.networks import CategoricalHead


class DiscreteSAC(OffPolicy):
    """Christodoulou, 2019 (arXiv:1910.07207): expectations over all actions take the place of
    samples."""

    graph_safe = True
    metrics = ("critic_loss", "actor_loss", "value", "entropy", "temperature")

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self._actions = cast("CategoricalHead", self.actor.head).output_size
        self.critic = self.add_critic("critic", observation_space, 2, outputs=self._actions)
        self.temperature = Temperature(
            self.hyperparameters["initial_temperature"], learns=self.shared["learn_temperature"]
        )
        if self.temperature.learns:
            self.optimizers["temperature"] = self.temperature.optimizer
            self.memory["log_temperature"] = self.temperature.log

    @classmethod
    def make_head(
        cls,
        shared: Mapping[str, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str,
    ) -> CategoricalHead:
        return CategoricalHead.of(action_space)

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        critic_loss = self.learn_critic(batch)
        actor_loss, value, entropy = self.learn_actor(batch)
        self.follow(self.critic)
        return critic_loss, actor_loss, value, entropy, self.temperature.value

    def learn_critic(self, batch: Batch) -> Tensor:
        """Towards r + γ Σ_a π(a | s') (min_i Q̄_i(s', a) - α log π(a | s')) (equation 10); returns
        the loss [M]."""
        log_probs = self.policy.frozen(batch.next_observation).log_softmax(-1)  # [M, B, n]
        next_values = ensemble_outputs(self.critic.target, batch.next_observation).amin(1)
        soft = next_values - self.temperature.value.view(-1, 1, 1) * log_probs
        target = batch.reward + batch.discount * (log_probs.exp() * soft).sum(-1)
        with torch.enable_grad():
            values = ensemble_outputs(self.critic.network, batch.observation)  # [M, 2, B, n]
            chosen = batch.action.view(self.members, 1, -1, 1).expand(-1, 2, -1, -1)
            values = values.gather(-1, chosen).squeeze(-1)
        loss, slope, error = squared_error(values, target, batch.weight)
        self.minimize(self.critic, values, slope, self.hyperparameters["learning_rate"])
        self.set_priorities(batch, error)
        return loss

    def learn_actor(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Down Σ_a π(a | s) (α log π(a | s) - min_i Q_i(s, a)) (equation 12); then the temperature
        (equation 11).

        Returns loss, value and entropy, [M] each.
        """
        values = ensemble_outputs(self.critic.frozen, batch.observation).amin(1)  # [M, B, n]
        alpha = self.temperature.value.view(-1, 1, 1)
        with torch.enable_grad():
            log_probs = self.policy.network(batch.observation).log_softmax(-1)
            loss = ((log_probs.exp() * (alpha * log_probs - values)).sum(-1) * batch.weight).sum(1)
        rate = self.hyperparameters["learning_rate"]
        self.minimize(
            self.policy, loss, None, rate * self.hyperparameters["actor_learning_rate_scale"]
        )
        log_probs = log_probs.detach()
        probs = log_probs.exp()
        row_sum = batch.weight.sum(1).clamp(min=1e-8)
        entropy = -((probs * log_probs).sum(-1) * batch.weight).sum(1) / row_sum
        target = self.hyperparameters["target_entropy_scale"] * math.log(self._actions)
        self.temperature.update(entropy, target, rate, self.active)
        return loss.detach(), ((probs * values).sum(-1) * batch.weight).sum(1), entropy
