"""An algorithm's part in fusions: what several learners of one cohort share, and how they take it
over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.algorithms.preparation import StateValues
from podracer_core.fusion import FusionState
from podracer_core.networks import RunningNormalizer


@dataclass(frozen=True, slots=True)
class Shared:
    """An algorithm's own tensors and statistics, which go on changing while it learns.

    parameters   name -> view [M, …] of what gradient steps and targets move; to write into it is to
                 change it
    normalizers  by name
    transitions  int64 [M]
    active       bool [M]
    values       the critic behind `critic_head`, where it learns in units of its own
    critic_head  names of the weight and the bias of its last layer
    """

    parameters: Mapping[str, Tensor]
    normalizers: Mapping[str, RunningNormalizer]
    transitions: Tensor
    active: Tensor
    values: StateValues | None = None
    critic_head: tuple[str, str] = ("", "")


class Sharing:
    """Gives what a learner brings to a fusion, and takes the result over.

    Moments of optimizers stay each learner's own and go on over a fusion, as in DiLoCo: to average
    them is two times the parameters more to send, and to reset them is a warm-up after each. What
    else only one learner knows (replay, random streams, counters of its own) stays with it.

    A critic whose rewards or targets are normalized comes with its last layer in units of reward
    (float64): each learner's units are its own, and weights of different units have no mean."""

    def __init__(self, shared: Shared, loaded: Callable[[], None]) -> None:
        """`loaded` is called after each `load`. From now on normalizers keep account of their
        growth; the observations' changes by `load` alone, since weights that act on differently
        normalized inputs have no mean."""
        self._shared, self._loaded = shared, loaded
        self._growths = {
            name: normalizer.share(frozen=name == "observations")
            for name, normalizer in shared.normalizers.items()
        }
        self._taken = shared.transitions.clone()

    @property
    def transitions(self) -> Tensor:
        """int64 [M], copied: environment steps of each agent, this learner's since the last `load`
        included."""
        return self._shared.transitions.clone()

    @torch.no_grad()
    def state(self) -> FusionState:
        """A copy of the learner's state, from which all others begin."""
        stands = self._stands()
        parameters = {name: tensor.clone() for name, tensor in stands.parameters.items()}
        return FusionState(
            parameters, stands.statistics, stands.transitions.clone(), stands.active.clone()
        )

    @torch.no_grad()
    def growth(self) -> FusionState:
        """A learner's contribution: its parameters, and the growth of its statistics and
        transitions."""
        stands = self._stands()
        return FusionState(
            {name: tensor.clone() for name, tensor in stands.parameters.items()},
            {name: growth.moments() for name, growth in self._growths.items()},
            stands.transitions - self._taken,
            stands.active.clone(),
        )

    @torch.no_grad()
    def load(self, state: FusionState) -> None:
        """Go on from `state`. Raises InvalidInput for another cohort's.

        Call it between two updates, before the weights of the former update are given out: the
        policy version is that of the update."""
        self._stands().require_like(state)
        shared = self._shared
        for name, normalizer in shared.normalizers.items():
            normalizer.load_moments(state.statistics[name])
        parameters = dict(state.parameters)
        if shared.values is not None:
            weight, bias = (parameters.pop(name) for name in shared.critic_head)
            shared.values.load_reward_head(weight, bias)
        for name, tensor in parameters.items():
            shared.parameters[name].copy_(tensor)
        shared.transitions.copy_(state.transitions)
        shared.active.copy_(state.active)
        self._taken.copy_(state.transitions)
        self._loaded()

    @torch.no_grad()
    def settle(self) -> None:
        """Have all statistics take in their growth, at the end of a round: what is not fused is the
        learner's own, and belongs into its checkpoint. What `growth` gives does not change, and
        more than once is as once."""
        for normalizer in self._shared.normalizers.values():
            normalizer.settle()
        self._loaded()

    def _stands(self) -> FusionState:
        """The learner's state, with views of what it trains."""
        shared = self._shared
        parameters = dict(shared.parameters)
        if shared.values is not None:
            parameters |= dict(zip(shared.critic_head, shared.values.reward_head(), strict=True))
        statistics = {name: normalizer.moments() for name, normalizer in shared.normalizers.items()}
        return FusionState(parameters, statistics, shared.transitions, shared.active)
