"""DQN, Double DQN, Dueling DQN and D3QN of M agents at once: docs/algorithms/dqn.md has the
equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.experience import Batch
from podracer_core.algorithms.off_policy import OffPolicy
from podracer_core.algorithms.values import EnsemblePass, ensemble_outputs, squared_error
from podracer_core.networks import ValueHead


class DQN(OffPolicy):
    """Mnih et al., 2015 (Nature 518), for Discrete actions; see `Algorithm` for the interface."""

    metrics = ("critic_loss", "value")
    has_actor_target = True
    graph_safe = True
    double: ClassVar[bool] = False
    dueling: ClassVar[bool] = False

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        self.head = cast("ValueHead", self.actor.head)
        self.slow_interval = self.shared["target_interval"]

    @classmethod
    def make_head(
        cls,
        shared: Mapping[str, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str,
    ) -> ValueHead:
        return ValueHead(action_space, dueling=cls.dueling)

    @classmethod
    def actor_ensemble(cls, shared: Mapping[str, Any]) -> int:
        size: int = shared["ensemble_size"]
        return size

    def random_fraction(self, transitions: Tensor) -> Tensor:
        """ε-greedy: from 1 to `final_exploration` over `exploration_steps` transitions, after the
        first random ones."""
        progress: Tensor = (transitions - self.shared["learning_starts"]) / self.shared[
            "exploration_steps"
        ]
        return 1.0 - (1.0 - self.hyperparameters["final_exploration"]) * progress.clamp(0.0, 1.0)

    def learn(self, batch: Batch) -> Sequence[Tensor]:
        networks = EnsemblePass(self.policy.network, batch.observation)
        with torch.enable_grad():
            output = networks.output.requires_grad_()
            values = self.taken(output, batch.action)
        loss, slope, error = self.error(values, batch)
        (slope,) = torch.autograd.grad(values, output, slope)
        self.minimize(self.policy, networks, slope, self.hyperparameters["learning_rate"])
        self.set_priorities(batch, error)
        if self.is_slow_step:
            self.follow(self.policy)
        value = values.detach().view(*values.shape[:3], -1).mean((1, 3))
        return loss, (value * batch.weight).sum(1)

    def taken(self, output: Tensor, action: Tensor) -> Tensor:
        """Values [M, N, B] of the actions taken [M, B], from the networks' outputs [M, N, B,
        output_size]."""
        chosen = action.view(self.members, 1, -1, 1).expand(-1, output.shape[1], -1, -1)
        return self.head.values(output).gather(-1, chosen).squeeze(-1)

    def error(self, values: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of the values from `taken`: see `squared_error`."""
        target = batch.reward + batch.discount * self.next_value(batch.next_observation)
        return squared_error(values, target, batch.weight, self.hyperparameters["huber_threshold"])

    def next_value(self, observation: Tensor) -> Tensor:
        """max_a Q̄(s', a), or with `double` Q̄(s', argmax_a Q(s', a)) (van Hasselt et al., 2016,
        arXiv:1509.06461, equation 4); of an ensemble always the smallest Q. [M, B, obs] -> [M,
        B]."""
        values = self.head.combine(ensemble_outputs(self.policy.target, observation))  # [M, B, n]
        if not self.double:
            return values.amax(-1)
        best = self.head.combine(ensemble_outputs(self.policy.frozen, observation)).argmax(
            -1, keepdim=True
        )
        return values.gather(-1, best).squeeze(-1)


class DoubleDQN(DQN):
    """The learned network chooses the action of a target, the slow one says what it is worth."""

    graph_safe = double = True


class DuelingDQN(DQN):
    """Q = V + A - mean A (Wang et al., 2016, arXiv:1511.06581, equation 9)."""

    graph_safe = dueling = True


class D3QN(DQN):
    """Dueling and double."""

    graph_safe = double = dueling = True
