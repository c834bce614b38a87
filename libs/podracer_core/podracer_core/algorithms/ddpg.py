"""Deep Deterministic Policy Gradient of M agents at once: docs/algorithms/ddpg.md has the
equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import gymnasium
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.off_policy import OffPolicy
from podracer_core.algorithms.values import EnsemblePass, action_values, squared_error
from podracer_core.networks import DeterministicHead


class DDPG(OffPolicy):
    """Lillicrap et al., 2016 (arXiv:1509.02971), algorithm 1, for bounded Box actions; see
    `Algorithm`."""

    graph_safe = True
    box_head = DeterministicHead
    metrics = ("critic_loss", "actor_loss", "value")
    has_actor_target = True

    critic_count: ClassVar[int] = 1

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self.head = cast("DeterministicHead", self.actor.head)
        self.critic = self.add_critic(
            "critic", observation_space, self.critic_count, action_size=self.head.action_size
        )

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        next_action = self.policy.target(batch.next_observation).tanh()
        following = action_values(self.critic.target, batch.next_observation, next_action)
        critic_loss, _ = self.learn_critic(batch, following)
        actor_loss, value = self.learn_actor(batch)
        self.follow(self.policy, self.critic)
        return critic_loss, actor_loss, value

    def learn_critic(self, batch: Batch, following: Tensor) -> tuple[Tensor, Tensor]:
        """Towards r + γ min_i Q̄_i(s', a'), `following` being these Q̄ [M, N, B]; returns the loss
        [M] and the values [M, N, B]."""
        target = batch.reward + batch.discount * following.amin(1)
        critics = EnsemblePass(self.critic.network, batch.observation, batch.action)
        values = critics.output.squeeze(-1)
        loss, slope, error = squared_error(values, target, batch.weight)
        self.minimize(
            self.critic, critics, slope.unsqueeze(-1), self.hyperparameters["learning_rate"]
        )
        self.set_priorities(batch, error)
        return loss, values

    def learn_actor(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Step up the first critic's value of the actor's own action (equation 6). Returns loss and
        value, [M]."""
        further = self.h_term_loss()
        actors = EnsemblePass(self.policy.network, batch.observation)
        action = actors.output.squeeze(1).tanh()
        critics = EnsemblePass(self.critic.first, batch.observation, action)
        action_slope = critics.action_slope(-batch.weight[:, None, :, None])
        slope = action_slope * (1.0 - action.square())
        rate = (
            self.hyperparameters["learning_rate"]
            * self.hyperparameters["actor_learning_rate_scale"]
        )
        self.minimize(self.policy, actors, slope.unsqueeze(1), rate, further=further)
        value = (critics.output[:, 0, :, 0] * batch.weight).sum(1)
        return -value if further is None else further.detach() - value, value
