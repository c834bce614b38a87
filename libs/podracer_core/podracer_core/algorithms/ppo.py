"""Proximal Policy Optimization of M agents at once: docs/algorithms/ppo.md has the equations and
all deviations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from podracer_core.algorithms.algorithm import MemberState
from podracer_core.algorithms.on_policy import OnPolicy
from podracer_core.algorithms.preparation import Minibatch, RolloutRows
from podracer_core.catalogue import find_algorithm
from podracer_core.device import compiled
from podracer_core.kernels import kernels_for
from podracer_core.networks import ACTOR
from podracer_core.random_numbers import minibatch_keys, permutation

MINIBATCHES = 4
"""Minibatches of a pass if no size is given: Huang et al. 2022, The 37 Implementation Details of
PPO."""

_MOST_CPU_ROWS = 2048
"""Most rows of such a minibatch on a CPU: larger ones are no faster and give fewer steps for a
rollout."""

_LEAST_RATE, _GREATEST_RATE, _RATE_FACTOR = 1e-5, 1e-2, 1.5  # of adapted rates: rsl_rl's


class PPO(OnPolicy):
    """Clipped-surrogate PPO for Discrete, MultiDiscrete, MultiBinary and Box actions; see
    `OnPolicy` for its frame."""

    info = find_algorithm("ppo")
    graph_safe = True
    policy_metrics = ("kl", "clip_fraction")

    def set_up(self) -> None:
        self._epoch_count = torch.zeros(self.members, dtype=torch.int64, device=self.device)
        self._rate_factor = torch.ones(self.members, device=self.device)
        self._order = compiled(_order, self.device)
        self._kernels = None
        # A class that derives from this one may have losses of its own.
        inputs = self._networks.both.architecture.inputs
        if type(self) is PPO and self._h_term is None and self._networks.actor_inputs == inputs:
            self._kernels = kernels_for(self._networks, self._networks.head, self._optimizer)

    def _further_metrics(self) -> dict[str, Tensor]:
        return {"rate_factor": self._rate_factor.clone()} if self._adapts_rate else {}

    @property
    def _clips_values(self) -> bool:
        return self._hyperparameters.any_positive("value_clip_range")

    @property
    def _adapts_rate(self) -> bool:
        return self._hyperparameters.any_positive("desired_kl")

    def _kernel_steps(self, rows: RolloutRows, rate: Tensor) -> Tensor | None:
        kernels = self._kernels
        if kernels is None:
            return None
        own = self._hyperparameters
        losses = ("clip_range", "value_clip_range", "value_coefficient", "entropy_coefficient")
        steps = ("learning_rate", "max_gradient_norm", "desired_kl", "target_kl")
        hyperparameters = (
            torch.stack([own[name] for name in losses]),
            torch.stack([rate, *(own[name] for name in steps)]),
        )
        kernels.begin(self.active, self._rate_factor)
        size = self._minibatch_size(rows)
        for order in self._orders(rows):
            for start in range(0, rows.count, size):
                kernels.step(
                    rows.columns,
                    order,
                    slice(start, min(start + size, rows.count)),
                    hyperparameters,
                    masked=rows.masked,
                    clips_values=self._clips_values,
                    adapts_rate=self._adapts_rate,
                )
        return kernels.end(self.active, self._rate_factor)

    def _minibatches(self, rows: RolloutRows) -> Iterator[Minibatch]:
        for order in self._orders(rows):
            yield from rows.minibatches(self._minibatch_size(rows), order)

    def _minibatch_size(self, rows: RolloutRows) -> int:
        quarter = -(-rows.count // MINIBATCHES)
        usual = min(quarter, _MOST_CPU_ROWS) if self.device.type == "cpu" else quarter
        return int(self._shared["minibatch_size"]) or usual

    def _orders(self, rows: RolloutRows) -> Iterator[Tensor]:
        """`epochs` passes, each in a new order of the member's own."""
        for _ in range(self._shared["epochs"]):
            order = self._order(self._seeds, self._epoch_count, rows.count)
            self._epoch_count += 1
            yield order

    def _policy_loss(
        self, log_prob: Tensor, minibatch: Minibatch
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        log_ratio = log_prob - minibatch.log_prob
        clip_range = self._hyperparameters["clip_range"]
        surrogate, slope = clipped_surrogate(log_ratio, minibatch.advantage, clip_range)
        ratio = log_ratio.exp()
        # Schulman's low-variance estimate of the Kullback-Leibler divergence, (r - 1) - log r.
        divergence = ratio - 1 - log_ratio
        clipped = ((ratio - 1).abs() > clip_range.unsqueeze(1)).float()
        return -surrogate, -slope, (divergence, clipped)

    def _value_loss(self, value: Tensor, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        if not self._clips_values:
            return super()._value_loss(value, minibatch)
        clip_range = self._hyperparameters["value_clip_range"]
        return clipped_value_error(value, minibatch.value, minibatch.target, clip_range)

    def _further_gradients(self, rows: int) -> list[Tensor]:
        """Gradients of the H-term: autograd for the log-probabilities, written out for the
        heads."""
        if self._h_term is None:
            return []
        windows = self._h_term.draw(rows, self._optimizer.step_count.long())
        with torch.enable_grad():
            actor = self._networks.both.map(lambda tensor: tensor[ACTOR::2]).narrowed(
                self._networks.actor_inputs
            )
            output = actor(self.actor.normalize(windows.observation))
        policy = output.detach()
        if windows.action_mask is not None:
            policy = self._networks.head.allow(policy, windows.action_mask)
        density = self._networks.head.density(policy, self._networks.settings, windows.action)
        slope = self._h_term.slope(windows, density.log_prob)
        gradient, log_std_gradient = density.gradient(slope, torch.zeros_like(slope))
        output.backward(gradient)  # type: ignore[no-untyped-call]
        return [log_std_gradient]

    def _step_rate(self, rate: Tensor, metrics: Mapping[str, Tensor], moved: Tensor) -> Tensor:
        if not self._adapts_rate:
            return rate
        own = self._hyperparameters["learning_rate"]
        adapted = adapted_rate(
            own * self._rate_factor, metrics["kl"], self._hyperparameters["desired_kl"]
        )
        self._rate_factor.copy_(torch.where(moved, adapted / own, self._rate_factor))
        return rate * self._rate_factor

    def _goes_on(self, metrics: Mapping[str, Tensor]) -> Tensor:
        target_kl = self._hyperparameters["target_kl"]
        return (target_kl <= 0) | (metrics["kl"] <= 1.5 * target_kl)

    def member_state(self, member: int) -> MemberState:
        state = super().member_state(member)
        state["random"]["epoch_count"] = self._epoch_count[member].clone()
        state["random"]["rate_factor"] = self._rate_factor[member].clone()
        return state

    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_member_state(member, state)
        # a child's, and 0.1 had none
        self._rate_factor[member] = state.get("random", {}).get("rate_factor", 1.0)
        if "random" in state:
            self._epoch_count[member] = state["random"]["epoch_count"]

    def set_hyperparameters(self, member: int, values: Mapping[str, float]) -> None:
        super().set_hyperparameters(member, values)
        if "desired_kl" in values:
            self._rate_factor[member] = 1.0


def _order(seeds: Tensor, epoch: Tensor, rows: int) -> Tensor:
    """The order [M, rows] in which members with these seeds take their rows in their own `epoch`
    [M]."""
    return permutation(minibatch_keys(seeds), epoch, rows)


# Both objectives are written so that NaN stays NaN, and the member that it belongs to is noticed.
def clipped_surrogate(
    log_ratio: Tensor, advantage: Tensor, clip_range: Tensor
) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 - c, 1 + c) A) of Schulman et al., 2017, equation 7, and its derivative in
    log r.

    log_ratio, advantage [M, B], clip_range [M] -> [M, B] each. The derivative is zero where the
    ratio has left the range in the direction that the advantage asks for, and r A elsewhere."""
    ratio = log_ratio.exp()
    limit = clip_range.unsqueeze(1)
    free = ratio * advantage
    clipped = torch.minimum(torch.maximum(ratio, 1 - limit), 1 + limit) * advantage
    return torch.minimum(free, clipped), torch.where(free > clipped, 0.0, free)


def clipped_value_error(
    value: Tensor, old: Tensor, target: Tensor, clip_range: Tensor
) -> tuple[Tensor, Tensor]:
    """max((v - R)^2, (old + clip(v - old, -c, c) - R)^2) / 2 and its derivative in v, as OpenAI's
    baselines have it.

    value, old, target [M, B], clip_range [M] -> [M, B] each. A member whose range is 0 has (v -
    R)^2 / 2. The derivative is zero where the clipped error is the larger one, which then does not
    depend on v, and v - R elsewhere."""
    limit = clip_range.unsqueeze(1)
    error, moved = value - target, value - old
    free = error.square()
    # Only outside the range: inside, rounding alone would decide which of the two is larger.
    outside = (limit > 0) & (moved.abs() > limit)
    held = torch.where(outside, (old + torch.copysign(limit, moved) - target).square(), free)
    return 0.5 * torch.maximum(free, held), torch.where(held > free, 0.0, error)


def adapted_rate(rate: Tensor, kl: Tensor, desired_kl: Tensor) -> Tensor:
    """The learning rate of members whose policy has come as far as `kl` from where it was; all
    tensors are [M].

    A factor of 1.5 lower where that is more than twice as far as desired, higher where it is less
    than half as far, and within 1e-5 and 1e-2 (rsl_rl: Schwarke et al. 2025, arXiv:2509.10771). It
    stays where `desired_kl` is 0."""
    lower = torch.where(kl > 2 * desired_kl, rate / _RATE_FACTOR, rate)
    changed = torch.where(kl < desired_kl / 2, rate * _RATE_FACTOR, lower).clamp(
        _LEAST_RATE, _GREATEST_RATE
    )
    return torch.where(desired_kl > 0, changed, rate)
