"""Our PPO with single details as Stable-Baselines3 has them, for `benchmarks/ppo_details.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from podracer_core.algorithms import PPO, Minibatch, RolloutRows, normalized_advantages
from podracer_core.buffers import Rollout
from podracer_core.networks import RunningNormalizer


class Trained(PPO):
    """Ours, which can look at a rollout without learning from it."""

    def observe_only(self, rollout: Rollout) -> None:
        """Takes it into the observations' statistics."""
        self._observations.update(rollout, self.active)


class MinibatchAdvantages(Trained):
    """Advantages have mean 0 and deviation 1 in each minibatch, not in the rollout."""

    def _minibatches(self, rows: RolloutRows) -> Iterator[Minibatch]:
        for minibatch in super()._minibatches(rows):
            yield replace(
                minibatch,
                advantage=normalized_advantages(minibatch.advantage, minibatch.weight > 0),
            )


class RewardScale:
    """Rewards divided by the deviation of the discounted sums of them so far, clipped to ±10, as
    VecNormalize does."""

    def __init__(self, members: int, num_envs: int, gamma: float) -> None:
        self._sums, self._gamma = torch.zeros(members, num_envs), gamma
        self._statistics = RunningNormalizer(members, 1)

    def __call__(self, rollout: Rollout) -> Rollout:
        ended, rewards = rollout.terminated | rollout.truncated, torch.empty_like(rollout.reward)
        for t, reward in enumerate(rollout.reward):
            self._sums = self._sums * self._gamma + reward
            active = torch.ones(len(reward), dtype=torch.bool)
            self._statistics.update(
                self._sums.unsqueeze(-1), torch.ones_like(reward, dtype=torch.bool), active
            )
            rewards[t] = (reward / self._statistics.scale().float()).clamp(-10.0, 10.0)
            self._sums = torch.where(ended[t], 0.0, self._sums)
        return replace(rollout, reward=rewards)


@dataclass(frozen=True)
class Variant:
    """What is otherwise than in the recipe.

    scaled_rewards    `RewardScale` in place of Pop-Art
    random_ages       of the first episodes
    first_statistics  the first rollout only serves the observations' statistics; its steps count
    """

    title: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    algorithm: type[Trained] = Trained
    scaled_rewards: bool = False
    random_ages: bool = True
    first_statistics: bool = False

    def shared(self) -> dict[str, Any]:
        """Hyperparameters of the cohort."""
        return {
            "normalize_values": not self.scaled_rewards,
            "normalize_rewards": False,
            **self.hyperparameters,
        }

    def reward_scale(
        self, members: int, num_envs: int, gamma: float
    ) -> Callable[[Rollout], Rollout]:
        """What is done to each rollout before it is learned from."""
        return RewardScale(members, num_envs, gamma) if self.scaled_rewards else _as_it_is


def _as_it_is(rollout: Rollout) -> Rollout:
    return rollout


_HALF = {"value_coefficient": 0.5}

VARIANTS = {
    "default": Variant("the recipe: rewards scaled, and Pop-Art", {"normalize_rewards": True}),
    "values": Variant("the recipe, Pop-Art alone: the default before"),
    "half_weight": Variant("half the critic's weight", _HALF),
    "minibatch_advantages": Variant(
        "the same; advantages normalized in each minibatch", _HALF, MinibatchAdvantages
    ),
    "scaled_rewards": Variant("the same; rewards scaled, no Pop-Art", _HALF, scaled_rewards=True),
    "rewards": Variant(
        "the recipe, rewards scaled alone", {"normalize_rewards": True, "normalize_values": False}
    ),
    "same_age": Variant("the same; all first episodes begin at age 0", _HALF, random_ages=False),
    "first_statistics": Variant(
        "the same; observations normalized from the first update on", _HALF, first_statistics=True
    ),
    "both": Variant(
        "the recipe's weight, and observations normalized from the first update on",
        first_statistics=True,
    ),
    "as_sb3": Variant(
        "the recipe's weight, and all the other details",
        {},
        MinibatchAdvantages,
        scaled_rewards=True,
        random_ages=False,
        first_statistics=True,
    ),
}
