"""The base class of on-policy algorithms: everything but their losses."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from podracer_core.algorithms.algorithm import (
    Algorithm,
    CohortConfig,
    Hyperparameters,
    MemberState,
    Progress,
    Shared,
    Sharing,
    below,
    perturb_actor,
)
from podracer_core.algorithms.h_term import HTerm
from podracer_core.algorithms.preparation import (
    Minibatch,
    Preparation,
    ReturnScale,
    RolloutRows,
    StateValues,
)
from podracer_core.buffers import Rollout
from podracer_core.catalogue import AlgorithmInfo
from podracer_core.device import Graphed, compiled
from podracer_core.networks import (
    ACTOR,
    CRITIC,
    ActorCritic,
    Architecture,
    NetworkActor,
    ObservationStatistics,
    PolicyHead,
    actor_inputs,
    make_policy_head,
)
from podracer_core.optimizers import StackedAdam, clip_gradient_
from podracer_core.random_numbers import learner_seeds


class OnPolicy(Algorithm):
    """An actor and a critic that learn from a rollout and forget it; see `Algorithm` for the
    interface.

    A member's loss, over rows with weights w that add up to 1, is
        sum(w * policy_loss) + value_coefficient * sum(w * value_loss)
        - entropy_coefficient * sum(w * H).
    Each algorithm says what these losses are, with their derivatives, and how it goes through the
    rows.

    info            the algorithm's entry in the catalogue
    policy_metrics  names of what `_policy_loss` reports beside the loss
    """

    on_policy = True
    max_lag = 2
    info: ClassVar[AlgorithmInfo]
    policy_metrics: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> None:
        members = len(cohort.members)
        shared = cohort.shared_values(self.info)
        self.cohort, self.device, self.version = cohort, torch.device(device), 0
        self.horizon: int = shared["horizon"]
        self._shared = shared
        self._hyperparameters = Hyperparameters(cohort, self.info, self.device)
        head = make_policy_head(action_space, self.device)
        architecture = _architecture(shared, observation_space, head)

        inputs = actor_inputs(observation_space)
        self._networks = ActorCritic(members, architecture, head, self.device, inputs)
        self._optimizer = StackedAdam(
            self._networks.member_parameters, self._networks.member_gradients
        )
        self.actor: NetworkActor = NetworkActor.build(
            self._networks.actor,
            head,
            observation_space,
            members,
            normalize=shared["normalize_observations"],
            settings=self._networks.settings,
        )
        # A CPU works through a minibatch in parts whose hidden layers stay in its cache; the
        # gradients add up.
        part_rows = architecture.shared_rows(members) if self.device.type == "cpu" else 1 << 62
        self._observations = ObservationStatistics(self.actor)
        rewards = (
            ReturnScale(members, math.inf, self.device) if shared["normalize_rewards"] else None
        )
        values = StateValues(
            self._networks.critic, self.actor.normalize, part_rows, members, rewards
        )
        self._preparation = Preparation(
            self.actor, head, values, shared, self._hyperparameters, part_rows
        )
        self._prepare = compiled(self._preparation.rows, self.device)
        self._slopes = compiled(self._slopes_of, self.device)
        self._move = compiled(self._take_step, self.device)
        self._count_observations = compiled(self._observations.update, self.device)
        self.active = torch.ones(members, dtype=torch.bool, device=self.device)
        self._seeds = torch.tensor([member.seed for member in cohort.members], device=self.device)
        self._progress = Progress(members, self.device)
        self._networks.initialize(self._seeds, shared["initial_log_std"])
        self._h_term = HTerm.of(shared, self._hyperparameters, self._seeds)
        wanted = self.graph_safe and self._h_term is None
        self._learn = Graphed(self._learn_from, self.device, wanted=wanted)
        self.set_up()

    def set_up(self) -> None:
        """Make what this algorithm has besides actor and critic: the end of the constructor."""

    @classmethod
    def make_actor(
        cls,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> NetworkActor:
        shared, head = cohort.shared_values(cls.info), make_policy_head(action_space, device)
        architecture = _architecture(shared, observation_space, head)
        return NetworkActor.idle(
            replace(architecture, inputs=actor_inputs(observation_space)),
            head,
            observation_space,
            len(cohort.members),
            device,
            normalize=shared["normalize_observations"],
        )

    @abstractmethod
    def _minibatches(self, rows: RolloutRows) -> Iterator[Minibatch]:
        """The minibatch of each gradient step of an update."""

    @abstractmethod
    def _policy_loss(
        self, log_prob: Tensor, minibatch: Minibatch
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The loss of each row, its derivative in log_prob, and `policy_metrics`; all [M, B]."""

    def _value_loss(self, value: Tensor, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """The critic's loss of each row and its derivative in the value, [M, B] each."""
        error = value - minibatch.target
        return 0.5 * error.square(), error

    def _further_gradients(self, rows: int) -> list[Tensor]:
        """Add the gradients of what else the actor learns from in a step of `rows` rows to the
        networks'; returns those in log_std, [M, A] each."""
        return []

    def _further_metrics(self) -> dict[str, Tensor]:
        """Copies of what this algorithm reports, after all steps of an update, beside the means
        over these; [M] each."""
        return {}

    def _step_rate(self, rate: Tensor, metrics: Mapping[str, Tensor], moved: Tensor) -> Tensor:
        """The learning rate [M] of a step whose minibatch gave `metrics`, where the schedule says
        `rate`. Members that have `moved`, bool [M], have learned from this rollout before."""
        return rate

    def _goes_on(self, metrics: Mapping[str, Tensor]) -> Tensor:
        """The members that take a step whose minibatch gave `metrics` (weighted means), and go on;
        bool [M]."""
        return self.active

    @torch.no_grad()
    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        if self._h_term is not None:
            self._h_term.observe(rollout)
        stale, rewards = rollout.policy_version != self.version, self._preparation.values.rewards
        if rewards is not None and rewards.begin(rollout):
            self._learn.forget()
        metrics = self._learn(replace(rollout, policy_version=0, answered=None), stale)
        self.version += 1
        return metrics

    def _learn_from(self, rollout: Rollout, stale: bool) -> dict[str, Tensor]:
        """The update on the device. `stale`: an older policy than the present one took the
        rollout."""
        with self.observe("prepare"):
            rows, metrics = self._prepare(rollout, self.active, stale=stale)
        rate = scheduled_rate(
            self._shared["learning_rate_schedule"],
            self._hyperparameters["learning_rate"],
            self._progress.transitions,
            self._shared["schedule_steps"],
        )
        names = ("policy_loss", "value_loss", "entropy", *self.policy_metrics, "gradient_norm")
        with self.observe("gradient steps"):
            totals = self._kernel_steps(rows, rate)
            if totals is None:
                totals = torch.zeros(len(names) + 1, self.members, device=self.device)
                learning = self.active.clone()
                for minibatch in self._minibatches(rows):
                    self._step(minibatch, rate, learning, totals)
                    if self.halted():
                        break
        # They count from the next rollout on: this one was collected, and learned from, with the
        # old ones.
        self._count_observations(rollout, self.active)
        self._progress.add(rollout)
        metrics |= dict(zip(names, totals[:-1] / totals[-1], strict=True))
        return metrics | {"active": self.active.clone()} | self._further_metrics()

    def _kernel_steps(self, rows: RolloutRows, rate: Tensor) -> Tensor | None:
        """All gradient steps of an update at the rates [M] by kernels; None where there are none
        for them. Returns the sums of the metrics over each member's steps, and the number of these,
        [K + 1, M]."""
        return None

    def _step(self, minibatch: Minibatch, rate: Tensor, learning: Tensor, totals: Tensor) -> None:
        """One gradient step of all `learning` [M] members. Updates `learning`, `active` and the
        sums of metrics."""
        self._networks.parameters.zero_gradient()
        minibatch = replace(
            minibatch,
            weight=minibatch.weight / minibatch.weight.sum(1, keepdim=True).clamp(min=1e-8),
        )
        parts = [self._backward(part) for part in minibatch.split(self._preparation.part_rows)]
        further = self._further_gradients(minibatch.weight.shape[1])
        self._networks.parameters.gather_gradient()
        self._move(parts, further, rate, learning, totals)

    def _take_step(
        self,
        parts: list[tuple[Tensor, Tensor]],
        further: list[Tensor],
        rate: Tensor,
        learning: Tensor,
        totals: Tensor,
    ) -> None:
        """The step of a gradient that has been gathered, but for the one in log_std."""
        metrics = torch.stack([part for part, _ in parts]).sum(0)
        self._networks.gather_settings(
            torch.stack([gradient for _, gradient in parts] + further).sum(0)
        )
        gradient_norm = clip_gradient_(
            self._optimizer.gradient, self._hyperparameters["max_gradient_norm"]
        )
        finite = gradient_norm.isfinite() & ~metrics.isnan().any(0)
        # A member that diverges stays as it was before the step that would have broken it.
        self.active &= finite | ~learning
        learning &= finite
        named = dict(zip(self.policy_metrics, metrics[3:], strict=True))
        rate = self._step_rate(rate, named, learning & (totals[-1] > 0))
        learning &= self._goes_on(named)
        self._optimizer.step(rate, learning)
        totals += torch.where(
            learning,
            torch.cat([metrics, torch.stack([gradient_norm, torch.ones_like(gradient_norm)])]),
            0.0,
        )

    def _backward(self, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Add the gradient of every member's loss to the networks'; returns the metrics' weighted
        sums [K, M], and the gradient in log_std [M, A].

        The derivatives are written out, down to the network's outputs: see `Density`.
        """
        with torch.enable_grad():
            output = self._networks(self._preparation.seen(minibatch.observation))
        gradient, log_std_gradient, metrics = self._slopes(output.detach(), minibatch)
        output.backward(gradient)  # type: ignore[no-untyped-call]
        return metrics, log_std_gradient

    def _slopes_of(self, output: Tensor, minibatch: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
        """The loss's derivatives in the networks' `output` [M, 2, B, _] and in log_std [M, A], and
        the metrics' weighted sums [K, M]."""
        policy, value = output[:, ACTOR], output[:, CRITIC, :, 0]
        if minibatch.action_mask is not None:
            policy = self._networks.head.allow(policy, minibatch.action_mask)
        density = self._networks.head.density(policy, self._networks.settings, minibatch.action)
        policy_loss, policy_slope, policy_metrics = self._policy_loss(density.log_prob, minibatch)
        value_loss, value_slope = self._value_loss(value, minibatch)
        weight = minibatch.weight

        gradient = torch.zeros_like(output)
        entropy_slope = -self._hyperparameters["entropy_coefficient"].unsqueeze(1) * weight
        gradient[:, ACTOR], log_std_gradient = density.gradient(
            weight * policy_slope, entropy_slope
        )
        gradient[:, CRITIC, :, 0] = (
            self._hyperparameters["value_coefficient"].unsqueeze(1) * weight * value_slope
        )
        rows = torch.stack([policy_loss, value_loss, density.entropy, *policy_metrics])
        return gradient, log_std_gradient, (rows * weight).sum(-1)

    def member_state(self, member: int) -> MemberState:
        values = self._preparation.values
        return {
            **self._networks.member_state(member),
            "optimizer": self._optimizer.member_state(member),
            "normalizer": self._observations.member_state(member)
            | {
                f"{part}.{k}": v
                for part, own in values.normalizers.items()
                for k, v in own.member_state(member).items()
            },
            "algorithm": {"active": self.active[member].clone()},
            # A child has its own: its learning rate does not begin where its parent's has ended.
            "random": {
                "seed": self._seeds[member].clone(),
                "step_count": self._progress.steps[member].clone(),
                "transition_count": self._progress.transitions[member].clone(),
                **({} if values.rewards is None else values.rewards.running(member)),
            },
        }

    @torch.no_grad()
    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        values = self._preparation.values
        self._networks.load_member_state(member, state)
        if "optimizer" in state:
            self._optimizer.load_member_state(member, state["optimizer"])
        if "normalizer" in state:
            self._observations.load_member_state(member, state["normalizer"])
            for part, own in values.normalizers.items():
                own.load_member_state(member, below(part, state["normalizer"]))
            if any(name.startswith("rewards.") for name in state["normalizer"]) != (
                values.rewards is not None
            ):
                # of another unit: the next targets begin them
                values.statistics.load_member_state(member, {})
            elif not self._shared["normalize_values"]:
                values.denormalize(member)
        if "algorithm" in state:
            self.active[member] = state["algorithm"]["active"]
        if "random" in state:
            self._seeds[member] = state["random"]["seed"]
            self._progress.steps[member] = state["random"]["step_count"]
            self._progress.transitions[member] = state["random"]["transition_count"]
            if values.rewards is not None:
                values.rewards.load_running(member, state["random"])

    def set_hyperparameters(self, member: int, values: Mapping[str, float]) -> None:
        self._hyperparameters.change(member, values)
        self._learn.forget()

    def share(self, rank: int) -> Sharing:
        self._seeds.copy_(learner_seeds(self._seeds, rank))
        self._learn.forget()
        running, values = self._observations.running, self._preparation.values
        normalizers = values.normalizers | ({} if running is None else {"observations": running})
        if not self._shared["normalize_values"]:
            del normalizers["values"]
        shared = Shared(
            self._networks.shared(),
            normalizers,
            self._progress.transitions,
            self.active,
            values,
            self._networks.critic_head,
        )
        return Sharing(shared, self._observations.show)

    def perturb_member(self, member: int, scale: float, seed: int) -> None:
        perturb_actor(self.actor, member, scale, seed)


def _architecture(
    shared: Mapping[str, Any], space: gymnasium.Space[Any], head: PolicyHead
) -> Architecture:
    return Architecture.of(space, shared["hidden_sizes"], head.output_size, shared["activation"])


def scheduled_rate(schedule: str, rate: Tensor, transitions: Tensor, schedule_steps: int) -> Tensor:
    """The learning rate of members that have taken `transitions` so far; all tensors are [M].

    constant  the rate itself
    linear    falls to 0 over `schedule_steps` transitions, and stays there
    cosine    the same as half a wave (Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5,
              without restarts)
    """
    if schedule == "constant":
        return rate
    progress = (transitions.double() / schedule_steps).clamp(max=1.0)
    share = 1 - progress if schedule == "linear" else 0.5 * (1 + torch.cos(math.pi * progress))
    return (rate.double() * share).float()
