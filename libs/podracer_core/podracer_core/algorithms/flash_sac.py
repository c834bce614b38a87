"""FlashSAC of M agents at once: docs/algorithms/flash_sac.md has the equations and all
deviations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.algorithm import MemberState
from podracer_core.algorithms.experience import Batch, without_lost_rows
from podracer_core.algorithms.off_policy import OffPolicy
from podracer_core.algorithms.preparation import ReturnScale
from podracer_core.algorithms.sac import Temperature
from podracer_core.algorithms.values import ValueBins, ensemble_outputs
from podracer_core.buffers import Rollout
from podracer_core.errors import InvalidInput
from podracer_core.networks import SmoothGaussianHead

_LAST_RATE = 0.5
"""Share of the learning rate that is left at the end of the schedule."""


class FlashSAC(OffPolicy):
    """Kim et al., 2026 (arXiv:2604.04539): SAC with normalized residual networks, distributional
    critics, rewards scaled by the running return and noise that is repeated for some steps."""

    graph_safe = True
    body = "residual"
    box_head = SmoothGaussianHead
    slow_interval = 2
    metrics: ClassVar[tuple[str, ...]] = (
        "critic_loss",
        "actor_loss",
        "value",
        "entropy",
        "temperature",
    )

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self.head = cast("SmoothGaussianHead", self.actor.head)
        self.bins = ValueBins(self.shared["value_limit"], self.shared["value_bins"], self.device)
        self.critic = self.add_critic(
            "critic", observation_space, 2, self.bins.count, self.head.action_size
        )
        self.temperature = Temperature(
            self.hyperparameters["initial_temperature"], learns=self.shared["learn_temperature"]
        )
        if self.temperature.learns:
            self.optimizers["temperature"] = self.temperature.optimizer
            self.memory["log_temperature"] = self.temperature.log
        self._returns = ReturnScale(
            self.members, self.shared["value_limit"], self.device, drops_last=True
        )
        self.memory |= self._returns.memory
        # of the last step that the actor took
        self._actor_metrics = torch.zeros(3, self.members, device=self.device)

    @classmethod
    def actor_sizes(cls, shared: Mapping[str, Any]) -> Sequence[int]:
        sizes = [width // 2 for width in shared["hidden_sizes"]]
        if min(sizes) < 1:
            raise InvalidInput(
                "the actor is half as wide as the critics; expected 2 or more", field="hidden_sizes"
            )
        return sizes

    def observe_rollout(self, rollout: Rollout) -> None:
        self._returns.begin(rollout)
        self._returns.update(rollout, self.hyperparameters["gamma"], self.active)

    def member_state(self, member: int) -> MemberState:
        state = super().member_state(member)
        return {**state, "algorithm": {**state["algorithm"], **self._returns.running(member)}}

    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_member_state(member, state)
        self._returns.load_running(member, state.get("algorithm", {}))

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        batch = without_lost_rows(batch)
        noise, next_noise = self.noise(2, batch.reward.shape[1], self.head.action_size).unbind(1)
        if self.is_slow_step:
            self._actor_metrics.copy_(torch.stack(self.learn_actor(batch, noise)))
        critic_loss = self.learn_critic(batch, next_noise)
        self.follow(self.critic)
        return critic_loss, *self._actor_metrics, self.temperature.value

    def learn_critic(self, batch: Batch, noise: Tensor) -> Tensor:
        """Cross-entropy with the target's distribution, of which the critic with the smaller mean
        gives the form.

        Both (s, a) and (s', a') go through the networks, for the statistics that these normalize
        with. Returns the loss [M]."""
        rows = batch.reward.shape[1]
        next_action, log_prob = self.head.sample_with_log_prob(
            self.policy.frozen(batch.next_observation), noise
        )
        observation = torch.cat([batch.observation, batch.next_observation], 1)
        action = torch.cat([batch.action, next_action], 1)
        following = ensemble_outputs(self.critic.target, observation, action, by_batch=True)[
            :, :, rows:
        ]
        reward = batch.reward / self._returns.divisor().unsqueeze(1)
        bonus = self.temperature.value.unsqueeze(1) * log_prob
        target = self.bins.project(self.bins.pessimistic(following), reward, batch.discount, bonus)
        with torch.enable_grad():
            logits = ensemble_outputs(self.critic.network, observation, action, by_batch=True)[
                :, :, :rows
            ]
        loss, slope, error = self.bins.cross_entropy(logits, target, batch.weight)
        self.minimize(self.critic, logits, slope, self._rate(1))
        self.set_priorities(batch, error)
        return loss

    def learn_actor(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Down α log π(a | s) - min_i E[z_i(s, a)], a ~ π(s), then the temperature.

        The statistics that the actor normalizes with are those of s and s' together. Returns loss,
        value, entropy, [M]."""
        rows = batch.reward.shape[1]
        alpha = self.temperature.value.unsqueeze(1)
        observation = torch.cat([batch.observation, batch.next_observation], 1)
        with torch.enable_grad():
            output = self.policy.network(observation, by_batch=True)[:, :rows]
            action, log_prob = self.head.sample_with_log_prob(output, noise)
            logits = ensemble_outputs(self.critic.frozen, batch.observation, action)
            value = self.bins.mean(logits).amin(1)
            loss = ((alpha * log_prob - value) * batch.weight).sum(1)
        rate = self._rate(self.slow_interval)
        self.minimize(self.policy, loss, None, rate)
        entropy = -(log_prob.detach() * batch.weight).sum(1) / batch.weight.sum(1).clamp(min=1e-8)
        self.temperature.update(entropy, self.target_entropy, rate, self.active)
        return loss.detach(), (value.detach() * batch.weight).sum(1), entropy

    @property
    def target_entropy(self) -> Tensor:
        """Entropy [M] of a Gaussian with standard deviation `target_std` in each dimension of the
        action."""
        deviation = self.hyperparameters["target_std"]
        entropy: Tensor = (
            0.5 * self.head.action_size * (2.0 * math.pi * math.e * deviation.square()).log()
        )
        return entropy

    def _rate(self, interval: int) -> Tensor:
        """The step size [M] of what moves every `interval` gradient steps: half a cosine over
        `schedule_updates` of its own steps, from `learning_rate` to half of it."""
        share: Tensor = (self.update_count / (interval * self.shared["schedule_updates"])).clamp(
            max=1.0
        )
        factor = _LAST_RATE + (1.0 - _LAST_RATE) * 0.5 * (1.0 + (math.pi * share).cos())
        return self.hyperparameters["learning_rate"] * factor
