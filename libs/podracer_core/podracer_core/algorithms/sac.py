"""Soft Actor-Critic of M agents at once: docs/algorithms/sac.md has the equations and all
deviations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.off_policy import OffPolicy
from podracer_core.algorithms.values import EnsemblePass, action_values, squared_error
from podracer_core.networks import SquashedGaussianHead
from podracer_core.optimizers import StackedAdam


class Temperature:
    """alpha [M] of Haarnoja et al., 2018 (arXiv:1812.05905), equation 18: J(alpha) = E[-alpha (log
    pi + target)].

    Its logarithm is what Adam moves, so it stays above zero; J's derivative in log alpha is taken
    with alpha = 1 in front, as in the authors' code: the step does not shrink with alpha.

    log      float32 [M, 1], of what is learned
    learns   otherwise alpha is `initial`, also when that is changed
    """

    def __init__(self, initial: Tensor, *, learns: bool) -> None:
        self.learns, self._initial = learns, initial
        self.log = initial.log().unsqueeze(1)
        self._gradient = torch.zeros_like(self.log)
        self.optimizer = StackedAdam(self.log, self._gradient, epsilon=1e-8)

    @property
    def value(self) -> Tensor:
        """alpha, [M]."""
        return self.log[:, 0].exp() if self.learns else self._initial

    def update(
        self, entropy: Tensor, target: Tensor, learning_rate: Tensor, active: Tensor
    ) -> None:
        """One step: up where the policy's entropy [M] is below `target` [M], down where it is
        above."""
        if self.learns:
            self._gradient[:, 0] = entropy - target
            self.optimizer.step(learning_rate, active & entropy.isfinite())


class SAC(OffPolicy):
    """Haarnoja et al., 2018 (arXiv:1812.05905), for bounded Box actions; see `Algorithm` for the
    interface."""

    graph_safe = True
    box_head = SquashedGaussianHead
    metrics: ClassVar[tuple[str, ...]] = (
        "critic_loss",
        "actor_loss",
        "value",
        "entropy",
        "temperature",
    )

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self.head = cast("SquashedGaussianHead", self.actor.head)
        self.critic = self.add_critic(
            "critic", observation_space, self.critic_count, action_size=self.head.action_size
        )
        self.temperature = Temperature(
            self.hyperparameters["initial_temperature"], learns=self.shared["learn_temperature"]
        )
        if self.temperature.learns:
            self.optimizers["temperature"] = self.temperature.optimizer
            self.memory["log_temperature"] = self.temperature.log

    @property
    def critic_count(self) -> int:
        """N: critics of each member."""
        return 2

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        noise, next_noise = self.noise(2, batch.reward.shape[1], self.head.action_size).unbind(1)
        actors = self.act(batch)
        critic_loss, _ = self.learn_critic(batch, next_noise, actors)
        actor_loss, value, entropy = self.learn_actor(batch, noise, actors)
        self.follow(self.critic)
        return critic_loss, actor_loss, value, entropy, self.temperature.value

    def act(self, batch: Batch) -> EnsemblePass:
        """The actor's outputs for s, to learn from, and for s', the `rest`: one pass for a whole
        gradient step."""
        both = torch.cat([batch.observation, batch.next_observation], 1)
        return EnsemblePass(self.policy.network, both, rows=batch.reward.shape[1])

    def learn_critic(
        self, batch: Batch, noise: Tensor, actors: EnsemblePass | None = None
    ) -> tuple[Tensor, Tensor]:
        """Equations 5 and 6: towards r + γ (min_i Q̄_i(s', a') - α log π(a' | s')), a' ~ π(s').

        `actors`: what `act` gave, where it did. Returns the loss [M] and the targets [M, B].
        """
        output = (
            self.policy.frozen(batch.next_observation) if actors is None else actors.rest.squeeze(1)
        )
        next_action, log_prob = self.head.sample_with_log_prob(output, noise)
        critics, following = self.values_of(batch, next_action)
        next_value = self.pessimistic(following)
        target = batch.reward + batch.discount * (
            next_value - self.temperature.value.unsqueeze(1) * log_prob
        )
        loss, slope, error = squared_error(critics.output.squeeze(-1), target, batch.weight)
        self.minimize(
            self.critic, critics, slope.unsqueeze(-1), self.hyperparameters["learning_rate"]
        )
        self.set_priorities(batch, error)
        return loss, target

    def values_of(self, batch: Batch, next_action: Tensor) -> tuple[EnsemblePass, Tensor]:
        """Q_i(s, a), of [M, N, B, 1], and Q̄_i(s', a') [M, N, B]."""
        following = action_values(self.critic.target, batch.next_observation, next_action)
        return EnsemblePass(self.critic.network, batch.observation, batch.action), following

    def learn_actor(
        self,
        batch: Batch,
        noise: Tensor,
        actors: EnsemblePass | None = None,
        scale: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Equation 9: down α log π(a | s) - Q(s, a), a ~ π(s) by the reparametrization trick; then
        the temperature.

        `actors`: what `act` gave, where it did. The loss is multiplied by `scale` [M]; only members
        in `mask` bool [M] move. Returns loss, value, entropy, [M] each."""
        alpha, further = self.temperature.value.unsqueeze(1), self.h_term_loss()
        if actors is None:
            actors = EnsemblePass(self.policy.network, batch.observation, by_batch=True)
        output = actors.output.squeeze(1)
        action, log_prob = self.head.sample_with_log_prob(output, noise)
        critics = EnsemblePass(self.critic.frozen, batch.observation, action)
        value, share = self.optimistic(critics.output.squeeze(-1))
        weight = batch.weight if scale is None else scale.unsqueeze(1) * batch.weight
        action_slope = critics.action_slope(-(weight.unsqueeze(1) * share).unsqueeze(-1))
        slope = self.head.sample_slope(output, noise, action, action_slope, alpha * weight)
        self.minimize(self.policy, actors, slope.unsqueeze(1), self.actor_rate, mask, further)
        loss = ((alpha * log_prob - value) * weight).sum(1)
        entropy = -(log_prob * batch.weight).sum(1) / batch.weight.sum(1).clamp(min=1e-8)
        learning = self.active if mask is None else self.active & mask
        self.temperature.update(
            entropy, self.target_entropy, self.hyperparameters["learning_rate"], learning
        )
        total = loss if further is None else loss + further.detach()
        return total, (value * batch.weight).sum(1), entropy

    def pessimistic(self, values: Tensor) -> Tensor:
        """The value in a target: values [M, N, B] of the target critics -> [M, B]."""
        return values.amin(1)

    def optimistic(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's objective [M, B] from values [M, N, B] of the critics, and its derivative in
        them [M, N, B]."""
        least = values.amin(1)
        share = (values == least.unsqueeze(1)).float()
        return least, share / share.sum(1, keepdim=True)  # NaN where a value is

    @property
    def target_entropy(self) -> Tensor:
        """Section 6: minus the number of action dimensions, times `target_entropy_scale`, [M]."""
        return -self.head.action_size * self.hyperparameters["target_entropy_scale"]

    @property
    def actor_rate(self) -> Tensor:
        """The actor's step size, [M]."""
        return (
            self.hyperparameters["learning_rate"]
            * self.hyperparameters["actor_learning_rate_scale"]
        )
