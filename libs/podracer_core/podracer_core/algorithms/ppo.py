"""Proximal Policy Optimization of M agents at once: docs/algorithms/ppo.md has the equations and all deviations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.advantages import generalized_advantages, normalized_advantages
from podracer_core.algorithms.algorithm import Algorithm, MemberState
from podracer_core.algorithms.cohort import CohortConfig, check_member_hyperparameters
from podracer_core.algorithms.surrogate import clipped_surrogate
from podracer_core.buffers.rollout import Rollout
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.networks import (
    ACTOR,
    CRITIC,
    ActorCritic,
    RunningNormalizer,
    StochasticActor,
    make_action_head,
    observation_size,
)
from podracer_core.optimizers import StackedAdam, clip_gradient_
from podracer_core.random_numbers import normal, permutation
from podracer_core.random_streams import minibatch_keys, perturbation_key

_INFO = find_algorithm("ppo")
_CACHE_BYTES = 4 << 20
_METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "gradient_norm")


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows of every member, ready for the loss. B is the number of rows of one member."""

    observation: Tensor  # [M, B, obs], normalized
    action: Tensor  # [M, B, *action]
    log_prob: Tensor  # [M, B], under the proximal policy: the one at the start of the update
    advantage: Tensor  # [M, B]
    target: Tensor  # [M, B], of the value, normalized
    weight: Tensor  # [M, B], 0 where a row is not valid, less where an older policy acted

    def split(self, rows: int) -> list[Minibatch]:
        """Parts of at most `rows` rows."""
        if self.weight.shape[1] <= rows:
            return [self]
        columns = (getattr(self, field.name).split(rows, 1) for field in fields(self))
        return [Minibatch(*parts) for parts in zip(*columns, strict=True)]


class PPO(Algorithm):
    """Clipped-surrogate PPO for Discrete and Box actions; see `Algorithm` for the interface."""

    on_policy = True
    max_lag = 2

    def __init__(
        self,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> None:
        members = len(cohort.members)
        shared = cohort.shared_values(_INFO)
        self.cohort, self.device, self.version = cohort, torch.device(device), 0
        self.horizon: int = shared["horizon"]
        self._shared = shared
        self._hyperparameters = {
            name: torch.tensor(values, device=self.device) for name, values in cohort.member_values(_INFO).items()
        }
        self._head = make_action_head(action_space, self.device)
        self._observation_size = observation_size(observation_space)

        self._networks = ActorCritic(
            members, self._observation_size, shared["hidden_sizes"], self._head, shared["activation"], self.device
        )
        self._optimizer = StackedAdam(self._networks.member_parameters, self._networks.member_gradients)
        self._observations = RunningNormalizer(members, self._observation_size, self.device)
        self._values = RunningNormalizer(members, 1, self.device)
        self.actor: StochasticActor = StochasticActor(
            self._networks.actor,
            self._networks.log_std,
            torch.zeros(members, 1, self._observation_size, device=self.device),
            torch.ones(members, 1, self._observation_size, device=self.device),
            self._head,
        )
        # A CPU works through a minibatch in parts whose hidden layers stay in its cache; the gradients add up.
        row_bytes = 2 * members * max(shared["hidden_sizes"]) * 4
        self._microbatch_rows = max(256, _CACHE_BYTES // row_bytes) if self.device.type == "cpu" else 1 << 62
        self.active = torch.ones(members, dtype=torch.bool, device=self.device)
        self._seeds = torch.tensor([member.seed for member in cohort.members], device=self.device)
        self._epoch_count = torch.zeros(members, dtype=torch.int64, device=self.device)
        self._step_count = torch.zeros(members, dtype=torch.int64, device=self.device)
        self._networks.initialize(self._seeds, shared["initial_log_std"])

    @classmethod
    def make_actor(
        cls,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> StochasticActor:
        shared, members = cohort.shared_values(_INFO), len(cohort.members)
        head, size = make_action_head(action_space, device), observation_size(observation_space)
        networks = ActorCritic(members, size, shared["hidden_sizes"], head, shared["activation"], device)
        mean, scale = torch.zeros(members, 1, size, device=device), torch.ones(members, 1, size, device=device)
        return StochasticActor(networks.actor, networks.log_std, mean, scale, head)

    @torch.no_grad()
    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        batch, metrics = self._prepare(rollout)
        rows = rollout.horizon * rollout.num_envs
        keys = minibatch_keys(self._seeds)
        learning = self.active.clone()
        totals = torch.zeros(len(_METRICS) + 1, self.members, device=self.device)
        for _ in range(self._shared["epochs"]):
            order = permutation(keys, self._epoch_count, rows)
            self._epoch_count += 1
            for minibatch in self._minibatches(batch, order):
                self._step(minibatch, learning, totals)
        self._renew_actor_normalizer(rollout)
        self._step_count.copy_(rollout.first_step).add_(rollout.horizon)
        self.version += 1
        metrics |= dict(zip(_METRICS, totals[:-1] / totals[-1], strict=True))
        return metrics | {"active": self.active.clone()}

    def _prepare(self, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Advantages and targets; returns the rows [M, T * E, columns] of all minibatches, and first metrics."""
        horizon, members, num_envs = rollout.reward.shape
        valid = rollout.valid

        def by_member(tensor: Tensor) -> Tensor:
            return tensor.transpose(0, 1).reshape(members, horizon * num_envs, -1)

        value, next_value = self._values_of(rollout)
        observation = self.actor.normalize(by_member(rollout.observation[:-1]))
        proximal, importance = rollout.log_prob, None
        if rollout.policy_version != self.version:
            proximal = self._log_prob(observation, rollout)
            importance = (proximal - rollout.log_prob).exp().clamp(max=1.0)
        advantage = generalized_advantages(
            rollout.reward,
            value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            valid,
            self._hyperparameters["gamma"],
            self._hyperparameters["gae_lambda"],
            importance,
        )

        valid_rows = by_member(valid).squeeze(-1)
        target = by_member(torch.where(valid, value + advantage, 0.0))
        advantage = by_member(advantage).squeeze(-1)
        explained = 1 - _variance(advantage, valid_rows) / _variance(target, valid_rows)
        if self._shared["normalize_values"]:
            target = self._renew_value_normalizer(target, valid_rows)
        if self._shared["normalize_advantages"]:
            advantage = normalized_advantages(advantage, valid_rows)
        weight = valid.float() if importance is None else torch.where(valid, importance, 0.0)
        columns = [observation, by_member(rollout.action), by_member(proximal), advantage.unsqueeze(-1), target]
        rows = torch.cat([*columns, by_member(weight)], -1)
        # A broken row may hold NaN, which no weight of zero would keep out of the gradient.
        return torch.where(valid_rows.unsqueeze(-1), rows, 0.0), {"explained_variance": explained}

    def _minibatches(self, batch: Tensor, order: Tensor) -> list[Minibatch]:
        """One epoch: every row of `batch` [M, rows, columns] once, in the `order` [M, rows] of its member."""
        members, rows, columns = batch.shape
        offset = torch.arange(0, members * rows, rows, device=batch.device).unsqueeze(1)
        shuffled = batch.view(-1, columns).index_select(0, (order + offset).view(-1)).view(members, rows, columns)
        sizes = [self._observation_size, columns - self._observation_size - 4, 4]
        observation, action, numbers = shuffled.split_with_sizes(sizes, -1)
        action = action.reshape(members, rows, *self._head.action_shape).to(self._head.action_dtype)
        size = self._shared["minibatch_size"]
        minibatches = []
        for start in range(0, rows, size):
            part = slice(start, start + size)
            log_prob, advantage, target, weight = numbers[:, part].permute(2, 0, 1).contiguous()
            minibatches.append(Minibatch(observation[:, part], action[:, part], log_prob, advantage, target, weight))
        return minibatches

    def _step(self, minibatch: Minibatch, learning: Tensor, totals: Tensor) -> None:
        """One gradient step of all `learning` [M] members. Updates `learning`, `active` and the sums of metrics."""
        self._networks.parameters.zero_gradient()
        minibatch = replace(minibatch, weight=minibatch.weight / minibatch.weight.sum(1, keepdim=True).clamp(min=1e-8))
        parts = [self._backward(part) for part in minibatch.split(self._microbatch_rows)]
        metrics = torch.stack([part for part, _ in parts]).sum(0)
        self._networks.parameters.gather_gradient()
        self._networks.log_std_gradient.copy_(torch.stack([gradient for _, gradient in parts]).sum(0))
        gradient_norm = clip_gradient_(self._optimizer.gradient, self._hyperparameters["max_gradient_norm"])
        target_kl = self._hyperparameters["target_kl"]
        learning &= (target_kl <= 0) | (metrics[_METRICS.index("kl")] <= 1.5 * target_kl)
        finite = gradient_norm.isfinite()
        # A member that diverges stays as it was before the step that would have broken it.
        self.active &= finite | ~learning
        learning &= finite
        self._optimizer.step(self._hyperparameters["learning_rate"], learning)
        totals += torch.where(
            learning, torch.cat([metrics, torch.stack([gradient_norm, torch.ones_like(gradient_norm)])]), 0.0
        )

    def _backward(self, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Add the gradient of every member's loss to the networks'; returns metrics [5, M], as in _METRICS, and the
        gradient in log_std [M, A].

        loss = -sum(w * surrogate) + value_coefficient * sum(w * (v - target)^2 / 2) - entropy_coefficient * sum(w * H)
        over the rows of a member, with weights w that add up to 1. Members share no parameter and their losses are
        never mixed, so what flows back is each member's own gradient.
        """
        with torch.enable_grad():
            output = self._networks(minibatch.observation)
        policy, value = output.detach()[:, ACTOR], output.detach()[:, CRITIC, :, 0]
        density = self._head.density(policy, self._networks.log_std, minibatch.action)
        log_ratio = density.log_prob - minibatch.log_prob
        clip_range = self._hyperparameters["clip_range"]
        surrogate, slope = clipped_surrogate(log_ratio, minibatch.advantage, clip_range)
        error = value - minibatch.target
        weight = minibatch.weight

        gradient = torch.zeros_like(output)
        entropy_gradient = -self._hyperparameters["entropy_coefficient"].unsqueeze(1) * weight
        gradient[:, ACTOR], log_std_gradient = density.gradient(-weight * slope, entropy_gradient)
        gradient[:, CRITIC, :, 0] = self._hyperparameters["value_coefficient"].unsqueeze(1) * weight * error
        output.backward(gradient)  # type: ignore[no-untyped-call]

        ratio = log_ratio.exp()
        # Schulman's low-variance estimate of the Kullback-Leibler divergence, (r - 1) - log r.
        divergence = ratio - 1 - log_ratio
        clipped = ((ratio - 1).abs() > clip_range.unsqueeze(1)).float()
        rows = torch.stack([-surrogate, 0.5 * error.square(), density.entropy, divergence, clipped])
        return (rows * weight).sum(-1), log_std_gradient

    def _values_of(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """V of every observation and V of every true successor, [T, M, E] each."""
        value = self._value(rollout.observation)
        value, next_value = value[:-1], value[1:]
        # The next row is the true successor except where an episode ended; of these only cut-off ones have a future.
        cut_off = rollout.truncated & ~rollout.terminated
        if self.device.type == "cpu":
            steps = cut_off.flatten(1).any(1).nonzero().squeeze(1)
            final_value = torch.zeros_like(next_value)
            final_value[steps] = self._value(rollout.final_observation[steps])
        else:  # to look for these steps would make the host wait
            final_value = self._value(rollout.final_observation)
        return value, torch.where(cut_off, final_value, next_value)

    def _value(self, observation: Tensor) -> Tensor:
        """The critic in units of reward: observation [K, M, E, *obs] raw -> [K, M, E]."""
        scale, mean = self._values.scale().float(), self._values.mean.float()
        rows = max(1, self._microbatch_rows // observation.shape[2])
        values = []
        for part in torch.split(observation, rows):
            value = self._networks.critic(self.actor.normalize(part.transpose(0, 1).flatten(1, 2)))[..., 0]
            values.append((value * scale + mean).view(part.shape[1], part.shape[0], part.shape[2]).transpose(0, 1))
        return torch.cat(values)

    def _log_prob(self, observation: Tensor, rollout: Rollout) -> Tensor:
        """Of the rollout's actions under the present policy, [T, M, E]: the proximal one of a stale rollout."""
        action = rollout.action.transpose(0, 1).flatten(1, 2)
        output = self.actor.network(observation)
        log_prob = self._head.density(output, self.actor.log_std, action).log_prob
        return log_prob.view(rollout.members, rollout.horizon, -1).transpose(0, 1)

    def _renew_value_normalizer(self, target: Tensor, valid: Tensor) -> Tensor:
        """Take targets [M, B, 1] into the statistics and return them normalized; no prediction changes (Pop-Art)."""
        mean, scale, started = self._values.mean.clone(), self._values.scale(), self._values.count > 0
        self._values.update(target, valid, self.active)
        new_mean, new_scale = self._values.mean, self._values.scale()
        # van Hasselt et al., 2016, equation 9: W' = W scale / scale', b' = (scale b + mean - mean') / scale'.
        weight = self._networks.critic.weights[-1][..., :1]
        bias = self._networks.critic.biases[-1][..., 0]
        # Before the first targets the predictions mean nothing, and are left where they are: around the new mean.
        column = started.unsqueeze(1)
        weight.mul_(torch.where(column, scale / new_scale, 1.0).float().unsqueeze(-1))
        bias.copy_(torch.where(column, (scale * bias + mean - new_mean) / new_scale, bias))
        return (target - new_mean.float().unsqueeze(1)) / new_scale.float().unsqueeze(1)

    def _renew_actor_normalizer(self, rollout: Rollout) -> None:
        """Take the rollout's observations into the statistics: they count from the next rollout on."""
        if not self._shared["normalize_observations"]:
            return
        rows = rollout.observation[:-1].transpose(0, 1).reshape(rollout.members, -1, self._observation_size)
        valid = rollout.valid.transpose(0, 1).flatten(1)
        self._observations.update(rows, valid, self.active)
        self._freeze_normalizer()

    def _freeze_normalizer(self) -> None:
        self.actor.mean.copy_(self._observations.mean.unsqueeze(1))
        self.actor.scale.copy_(self._observations.scale().unsqueeze(1))

    def member_state(self, member: int) -> MemberState:
        normalizer = {
            "observation_mean": self.actor.mean[member, 0].clone(),
            "observation_scale": self.actor.scale[member, 0].clone(),
        }
        for name, running in (("observations", self._observations), ("values", self._values)):
            normalizer |= {f"{name}.{key}": value for key, value in running.member_state(member).items()}
        return {
            **self._networks.member_state(member),
            "optimizer": self._optimizer.member_state(member),
            "normalizer": normalizer,
            "algorithm": {"active": self.active[member].clone()},
            "random": {
                "seed": self._seeds[member].clone(),
                "epoch_count": self._epoch_count[member].clone(),
                "step_count": self._step_count[member].clone(),
            },
        }

    @torch.no_grad()
    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._networks.load_member_state(member, state)
        if "optimizer" in state:
            self._optimizer.load_member_state(member, state["optimizer"])
        if "normalizer" in state:
            for name, running in (("observations", self._observations), ("values", self._values)):
                prefix = f"{name}."
                part = {k.removeprefix(prefix): v for k, v in state["normalizer"].items() if k.startswith(prefix)}
                running.load_member_state(member, part)
            self._freeze_normalizer()
        if "algorithm" in state:
            self.active[member] = state["algorithm"]["active"]
        if "random" in state:
            self._seeds[member] = state["random"]["seed"]
            self._epoch_count[member] = state["random"]["epoch_count"]
            self._step_count[member] = state["random"]["step_count"]

    def set_hyperparameters(self, member: int, values: Mapping[str, float]) -> None:
        check_member_hyperparameters(_INFO, values)
        for name, value in values.items():
            self._hyperparameters[name][member] = value

    @torch.no_grad()
    def perturb_member(self, member: int, scale: float, seed: int) -> None:
        key = perturbation_key(seed).to(self.device)
        start = 0
        for weight in self.actor.network.weights:
            own = weight[member]
            noise = normal(key, torch.arange(start, start + own.numel(), device=self.device)).view_as(own)
            own += scale * own.std() * noise
            start += own.numel()


def _variance(values: Tensor, valid: Tensor) -> Tensor:
    """Of each member's valid rows: values [M, B] or [M, B, 1], valid [M, B] -> [M]."""
    weight = valid / valid.sum(1, keepdim=True).clamp(min=1)
    rows = torch.where(valid, values.view_as(valid), 0.0)
    mean = (weight * rows).sum(1, keepdim=True)
    return (weight * (rows - mean).square()).sum(1)
