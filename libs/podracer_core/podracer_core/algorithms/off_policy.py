"""The base class of off-policy algorithms: replay, the pace of learning, exploration, state;
without a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
from podracer_core.algorithms.experience import Batch, Experience
from podracer_core.algorithms.h_term import HTerm
from podracer_core.algorithms.values import EnsemblePass, TrainedNetwork
from podracer_core.buffers import Replay, Rollout
from podracer_core.catalogue import find_algorithm
from podracer_core.device import Graphed
from podracer_core.networks import (
    ActionHead,
    Architecture,
    Body,
    BoxHead,
    NetworkActor,
    ObservationStatistics,
    make_exploration,
)
from podracer_core.optimizers import StackedAdam
from podracer_core.random_numbers import learner_seeds, normal, replay_keys, update_noise_keys

ACTOR_NETWORK, CRITIC_NETWORK = 0, 100
"""Identities of the initial weights' random streams; an ensemble's networks count on from there."""

_STEPS_AT_ONCE = 16
"""Gradient steps whose batches are drawn at once, and which are one CUDA graph."""

_EPOCH_STEPS = 500
"""Gradient steps between two fusions: DiLoCo's H (Douillard et al., 2023, arXiv:2311.08105, section
3.1)."""


class Streams:
    """The random numbers of each member's gradient steps.

    seeds   int64 [M]; after a change, `open` makes the keys anew
    count   int64 [M]: gradient steps so far, the place in the streams
    """

    def __init__(self, seeds: Tensor) -> None:
        self.seeds, self.count = seeds, torch.zeros_like(seeds)
        self.replay_keys = torch.empty_like(seeds)
        self._noise_keys = torch.empty_like(seeds).unsqueeze(1)
        self.open()

    def open(self) -> None:
        """Begin the streams of `seeds`."""
        self.replay_keys.copy_(replay_keys(self.seeds))
        self._noise_keys.copy_(update_noise_keys(self.seeds).unsqueeze(1))

    def noise(self, *shape: int) -> Tensor:
        """Standard normal numbers [M, *shape] for this gradient step."""
        numbers = torch.Size(shape).numel()
        place = torch.arange(numbers, device=self.seeds.device)
        counter = self.count.unsqueeze(1) * numbers + place
        return normal(self._noise_keys, counter).view(-1, *shape)


class OffPolicy(Algorithm):
    """An algorithm defines `box_head` or `make_head`, `learn`, and `set_up` if it has more networks
    than the actor.

    hyperparameters   name -> float32 [M], those of scope "member"
    shared            the others
    networks          name -> what learns; "actor" is always there, and its networks are what
                      `actor` acts with
    optimizers        name -> optimizer of each network, and of whatever else learns
    memory            name -> tensor [M, …], the rest of an agent's state; changed in place
    fused_memory      names of those that gradient steps change, so that learners of one cohort fuse
                      them
    """

    on_policy = False
    max_lag = 1 << 62  # transitions of any policy and age are usable
    metrics: ClassVar[tuple[str, ...]]
    """Names of what `learn` returns, in that order."""

    box_head: ClassVar[type[BoxHead]]
    """The head for actions in bounded boxes; an algorithm for other spaces defines `make_head`."""

    body: ClassVar[Body] = "plain"
    """The body of all networks: see `Architecture`. `layer_norm` adds layer normalization to the
    plain one."""

    has_actor_target: ClassVar[bool] = False
    has_critic_target: ClassVar[bool] = True
    slow_interval = 1
    """Gradient steps from one that is slow to the next: see `is_slow_step`."""

    fused_memory: ClassVar[tuple[str, ...]] = ("log_temperature",)

    def __init__(
        self,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> None:
        info, members = find_algorithm(cohort.algorithm), len(cohort.members)
        self.cohort, self.device, self.version = cohort, torch.device(device), 0
        self.shared = cohort.shared_values(info)
        self.horizon = self.shared["horizon"]
        self.hyperparameters = Hyperparameters(cohort, info, self.device)
        self.active = torch.ones(members, dtype=torch.bool, device=self.device)
        seeds = [member.seed for member in cohort.members]
        self._streams = Streams(torch.tensor(seeds, device=self.device))
        self._progress = Progress(members, self.device)
        self.gradient_steps = 0
        self._h_term = HTerm.of(self.shared, self.hyperparameters, self.seeds)

        head = self.make_head(self.shared, observation_space, action_space, self.device)
        architecture = self._actor_architecture(self.shared, observation_space, head)
        self.policy = TrainedNetwork(
            members,
            architecture,
            self.device,
            count=self.actor_ensemble(self.shared),
            with_target=self.has_actor_target,
        )
        self.policy.initialize(self.seeds, ACTOR_NETWORK)
        self.networks: dict[str, TrainedNetwork] = {"actor": self.policy}
        self.optimizers: dict[str, StackedAdam] = {"actor": self.policy.optimizer}
        self.memory = {"active": self.active, "transition_count": self._progress.transitions}
        self.actor: NetworkActor = NetworkActor.build(
            self.policy.frozen,
            head,
            observation_space,
            members,
            normalize=self.shared["normalize_observations"],
        )
        self._observations = ObservationStatistics(self.actor)
        self._experience = Experience(self.shared, self.hyperparameters, self.actor, members)
        self._set_exploration()
        wanted = self.graph_safe and self._h_term is None
        # of metrics, over an update
        self._totals = torch.zeros(len(self.metrics), members, device=self.device)
        self._gradient_steps = Graphed(self._take_gradient_steps, self.device, wanted=wanted)
        self.set_up(observation_space)

    def set_up(self, observation_space: gymnasium.Space[Any]) -> None:
        """Make the algorithm's parts besides the actor; called at the end of the constructor."""

    @classmethod
    def make_head(
        cls,
        shared: Mapping[str, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str,
    ) -> ActionHead:
        """The head that turns the actor's outputs into actions. Raises InvalidInput for an
        unsupported action space."""
        return cls.box_head(
            action_space, make_exploration(shared, observation_space, action_space), device
        )

    @abstractmethod
    def learn(self, batch: Batch) -> Sequence[Tensor]:
        """One gradient step of every member; returns `metrics`, [M] each. Gradients are off; it
        turns them on."""

    def observe_rollout(self, rollout: Rollout) -> None:
        """Called with a rollout that has just been stored, before its gradient steps."""

    @property
    def seeds(self) -> Tensor:
        """Each member's, int64 [M]."""
        return self._streams.seeds

    @property
    def update_count(self) -> Tensor:
        """Gradient steps of each member so far, int64 [M]."""
        return self._streams.count

    @property
    def is_slow_step(self) -> bool:
        """Whether the present gradient step is one in `slow_interval`, in which the actor or a
        target moves too."""
        return (self.gradient_steps + 1) % self.slow_interval == 0

    def random_fraction(self, transitions: Tensor) -> Tensor:
        """Share of uniformly random actions after `transitions` of each member, [M] -> [M]."""
        starts: int = self.shared["learning_starts"]
        return (transitions < starts).float()

    @classmethod
    def actor_ensemble(cls, shared: Mapping[str, Any]) -> int:
        """Networks that each member's actor has."""
        return 1

    @classmethod
    def make_actor(
        cls,
        cohort: CohortConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "cpu",
    ) -> NetworkActor:
        shared = cohort.shared_values(find_algorithm(cohort.algorithm))
        head = cls.make_head(shared, observation_space, action_space, device)
        return NetworkActor.idle(
            cls._actor_architecture(shared, observation_space, head),
            head,
            observation_space,
            len(cohort.members),
            device,
            normalize=shared["normalize_observations"],
            ensemble=cls.actor_ensemble(shared),
        )

    def add_critic(
        self,
        name: str,
        space: gymnasium.Space[Any],
        count: int,
        outputs: int = 1,
        action_size: int = 0,
    ) -> TrainedNetwork:
        """`count` critics for each member, with targets if wanted; for observations and actions of
        `action_size`."""
        sizes, activation = self.shared["hidden_sizes"], self.shared["activation"]
        architecture = Architecture.of(
            space, sizes, outputs, activation, action_size, self._body_of(self.shared)
        )
        with_target = self.has_critic_target
        critic = TrainedNetwork(
            self.members, architecture, self.device, count=count, with_target=with_target
        )
        critic.initialize(self.seeds, CRITIC_NETWORK)
        self.networks[name], self.optimizers[name] = critic, critic.optimizer
        return critic

    @torch.no_grad()
    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        with self.observe("store"):
            self._experience.add(rollout)
        self.observe_rollout(rollout)
        if self._h_term is not None:
            self._h_term.observe(rollout)
        self._observations.update(rollout, self.active)
        self._progress.add(rollout)
        self._totals.zero_()
        first, due = self.gradient_steps, self._experience.due_steps(rollout.horizon)
        with self.observe("gradient steps"):
            while (left := first + due - self.gradient_steps) > 0:
                before, phase = self.gradient_steps, self.gradient_steps % self.slow_interval
                count = self._steps_at_once(left, phase)
                self._gradient_steps(count, phase)
                if self._gradient_steps.is_active:
                    self.gradient_steps = before + count
                if self.halted():
                    break
        self._set_exploration()
        self.version += 1
        steps = self.gradient_steps - first
        values = self._totals / steps if steps else torch.full_like(self._totals, torch.nan)
        return dict(zip(self.metrics, values, strict=True)) | {"active": self.active.clone()}

    def _steps_at_once(self, left: int, phase: int) -> int:
        """How many of the steps that are `left` to take at once: of graphs there are few sizes, one
        for each phase."""
        if not self._gradient_steps.is_active:
            return min(left, _STEPS_AT_ONCE)
        whole = _STEPS_AT_ONCE // self.slow_interval * self.slow_interval
        return whole if phase == 0 and 0 < whole <= left else 1

    def _take_gradient_steps(self, count: int, phase: int) -> None:
        """Draw batches and learn from them, and add their metrics up; `phase` is the first step's
        number modulo `slow_interval`."""
        for batch in self.batches(count):
            self._totals += torch.stack(list(self.learn(batch)))
            self._streams.count += 1
            self.gradient_steps += 1
            if not self._gradient_steps.is_active and self.halted():
                break

    def noise(self, *shape: int) -> Tensor:
        """Standard normal numbers [M, *shape] for this gradient step, from each member's own
        stream."""
        return self._streams.noise(*shape)

    @torch.enable_grad()
    def h_term_loss(self) -> Tensor | None:
        """The H-term of the actor's loss in this gradient step, [M]; None if it is off."""
        if self._h_term is None:
            return None
        return self._h_term.actor_loss(
            self.policy.network, self.actor, self.shared["batch_size"], self.update_count
        )

    def minimize(
        self,
        network: TrainedNetwork,
        output: Tensor | EnsemblePass,
        slope: Tensor | None,
        rate: Tensor,
        mask: Tensor | None = None,
        further: Tensor | None = None,
    ) -> None:
        """A gradient step of all active members (that are in `mask`), at rate [M], down a loss
        whose derivative in `output` is `slope` (None: output is the loss itself, [M]), plus
        `further` [M].

        A member whose gradient is not finite stays as it was, for good.
        """
        wanted = self.active if mask is None else self.active & mask
        limit = None
        if self.hyperparameters.any_positive("max_gradient_norm"):
            limit = self.hyperparameters["max_gradient_norm"]
        took = network.minimize(output, slope, rate, wanted, limit, further)
        self.active &= took | ~wanted

    def follow(self, *networks: TrainedNetwork, mask: Tensor | None = None) -> None:
        """Move the targets of active members by their `target_rate`."""
        rate = self.hyperparameters["target_rate"] * (
            self.active if mask is None else self.active & mask
        )
        for network in networks:
            network.follow(rate)

    def set_priorities(self, batch: Batch, error: Tensor) -> None:
        """Let the errors [M, B] of this batch decide how often its transitions come again, if
        replay is prioritized."""
        self._experience.set_priorities(batch, error)

    def batches(self, count: int) -> Iterator[Batch]:
        """The batches of the next `count` gradient steps."""
        streams = self._streams
        return self._experience.batches(
            count, streams.replay_keys, streams.count, self._progress.transitions
        )

    @property
    def epochs(self) -> int:
        # The first one ends with the first gradient step: it is then that all learners begin to
        # share statistics.
        return -(-self.gradient_steps // _EPOCH_STEPS)

    def share(self, rank: int) -> Sharing:
        self.seeds.copy_(learner_seeds(self.seeds, rank))
        self._streams.open()
        parameters = {
            f"{name}.{key}": view
            for name, network in self.networks.items()
            for key, view in network.shared().items()
        }
        parameters |= {name: self.memory[name] for name in self.fused_memory if name in self.memory}
        running = self._observations.running
        normalizers = {} if running is None else {"observations": running}
        return Sharing(
            Shared(parameters, normalizers, self._progress.transitions, self.active), self._show
        )

    def _show(self) -> None:
        self._observations.show()
        self._set_exploration()

    @property
    def replay_size(self) -> int:
        replay = self.replay
        if replay is None:
            return 0
        return int(replay.size.max() if replay.shared else replay.size.sum()) * replay.num_envs

    @property
    def replay(self) -> Replay | None:
        """The replay buffer; None before the first rollout."""
        return self._experience.replay

    def _set_exploration(self) -> None:
        if "random_fraction" in self.actor.settings:
            self.actor.settings["random_fraction"].copy_(
                self.random_fraction(self._progress.transitions).unsqueeze(1)
            )
        if "noise_scale" in self.actor.settings:
            self.actor.settings["noise_scale"].copy_(
                self.hyperparameters["noise_scale"].unsqueeze(1)
            )

    @classmethod
    def actor_sizes(cls, shared: Mapping[str, Any]) -> Sequence[int]:
        """Widths of the actor's hidden layers."""
        sizes: Sequence[int] = shared["hidden_sizes"]
        return sizes

    @classmethod
    def _actor_architecture(
        cls, shared: Mapping[str, Any], space: gymnasium.Space[Any], head: ActionHead
    ) -> Architecture:
        body = cls._body_of(shared)
        return Architecture.of(
            space, cls.actor_sizes(shared), head.output_size, shared["activation"], body=body
        )

    @classmethod
    def _body_of(cls, shared: Mapping[str, Any]) -> Body:
        return "layer_normalized" if shared.get("layer_norm", False) else cls.body

    def member_state(self, member: int) -> MemberState:
        groups = {name: network.member_state(member) for name, network in self.networks.items()}
        groups["actor"] |= {
            name: setting[member].clone() for name, setting in self.actor.settings.items()
        }
        return groups | {
            "optimizer": {
                f"{name}.{key}": value
                for name, optimizer in self.optimizers.items()
                for key, value in optimizer.member_state(member).items()
            },
            "normalizer": self._observations.member_state(member),
            "algorithm": {name: tensor[member].clone() for name, tensor in self.memory.items()},
            "random": {
                "seed": self.seeds[member].clone(),
                "update_count": self.update_count[member].clone(),
                "step_count": self._progress.steps[member].clone(),
                "gradient_steps": torch.tensor(self.gradient_steps),
                "owed_steps": torch.tensor(self._experience.owed_steps, dtype=torch.float64),
            },
        }

    @torch.no_grad()
    def load_member_state(self, member: int, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, network in self.networks.items():
            if name in state:
                settings = self.actor.settings if name == "actor" else {}
                network.load_member_state(
                    member, {k: v for k, v in state[name].items() if k not in settings}
                )
        if "optimizer" in state:
            for name, optimizer in self.optimizers.items():
                if own := below(name, state["optimizer"]):
                    optimizer.load_member_state(member, own)
        if "normalizer" in state:
            self._observations.load_member_state(member, state["normalizer"])
        for name, value in state.get("algorithm", {}).items():
            # a parent that learned its temperature knows more than a child that does not
            if name in self.memory:
                self.memory[name][member] = value
        if "random" in state:
            self.seeds[member] = state["random"]["seed"]
            self._streams.open()
            self.update_count[member] = state["random"]["update_count"]
            self._progress.steps[member] = state["random"]["step_count"]
            self.gradient_steps = int(state["random"]["gradient_steps"])
            self._experience.owed_steps = float(state["random"]["owed_steps"])
        self._set_exploration()

    def replay_state(self, member: int) -> dict[str, Tensor]:
        return self._experience.member_state(member)

    def load_replay_states(self, states: Sequence[Mapping[str, Tensor] | None]) -> None:
        self._experience.load(states)

    def set_hyperparameters(self, member: int, values: Mapping[str, float]) -> None:
        self.hyperparameters.change(member, values)
        self._set_exploration()
        self._gradient_steps.forget()

    def perturb_member(self, member: int, scale: float, seed: int) -> None:
        perturb_actor(self.actor, member, scale, seed)
