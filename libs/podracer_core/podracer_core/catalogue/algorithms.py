"""Which algorithms there are, in which action spaces they can act, and every hyperparameter with its range."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from podracer_core.catalogue.hyperparameters import Hyperparameter, Scope, SearchRange
from podracer_core.catalogue.spaces import BoxSpace, DiscreteSpace, Space, describe
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["ALGORITHMS", "AlgorithmInfo", "check_action_space", "find_algorithm"]


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """An algorithm as far as it can be known without torch."""

    name: str
    title: str
    paper: str
    on_policy: bool
    action_spaces: tuple[type, ...]
    hyperparameters: tuple[Hyperparameter, ...]

    def hyperparameter(self, name: str) -> Hyperparameter:
        """The knob called `name`; InvalidInput with the nearest names if there is none."""
        for candidate in self.hyperparameters:
            if candidate.name == name:
                return candidate
        names = [candidate.name for candidate in self.hyperparameters]
        nearest = difflib.get_close_matches(name, names, n=2, cutoff=0.5) or names
        message = f"{self.name} has no hyperparameter {name!r}; did you mean {' or '.join(nearest)}?"
        raise InvalidInput(message, violations=[FieldViolation(name, message)], hyperparameter=name)

    def defaults(self, *scopes: Scope) -> dict[str, Any]:
        """Name → default of the knobs in `scopes`, or of all."""
        return {knob.name: knob.default for knob in self.hyperparameters if not scopes or knob.scope in scopes}


_PPO_PAPER = "Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347"
_DETAILS = "Huang et al. 2022, The 37 Implementation Details of PPO"
_STUDY = "Andrychowicz et al. 2021, What Matters In On-Policy RL?, arXiv:2006.05990"

_PPO = AlgorithmInfo(
    name="ppo",
    title="Proximal Policy Optimization",
    paper=_PPO_PAPER,
    on_policy=True,
    action_spaces=(BoxSpace, DiscreteSpace),
    hyperparameters=(
        Hyperparameter(
            "learning_rate", "float", 1e-3, "member",
            "step size of Adam",
            source=_STUDY, bounds=(1e-7, 1.0), search=SearchRange(2e-4, 5e-3, logarithmic=True),
        ),
        Hyperparameter(
            "gamma", "float", 0.99, "member",
            "discount of a reward one step later",
            source=_PPO_PAPER, bounds=(0.0, 1.0), search=SearchRange(0.9, 0.999),
        ),
        Hyperparameter(
            "gae_lambda", "float", 0.95, "member",
            "0 trusts the critic, 1 the observed return",
            source="Schulman et al. 2016, arXiv:1506.02438, eq. 16", bounds=(0.0, 1.0), search=SearchRange(0.8, 0.98),
        ),
        Hyperparameter(
            "clip_range", "float", 0.2, "member",
            "how far the probability ratio may leave 1",
            source=f"{_PPO_PAPER}, eq. 7", bounds=(1e-3, 10.0), search=SearchRange(0.1, 0.3),
        ),
        Hyperparameter(
            "entropy_coefficient", "float", 0.0, "member",
            "weight of the entropy bonus",
            source=f"{_PPO_PAPER}, eq. 9", bounds=(0.0, 10.0), search=SearchRange(1e-5, 1e-2, logarithmic=True),
        ),
        Hyperparameter(
            "value_coefficient", "float", 0.5, "member",
            "weight of the critic's loss",
            source=f"{_PPO_PAPER}, eq. 9", bounds=(0.0, 100.0),
        ),
        Hyperparameter(
            "max_gradient_norm", "float", 0.5, "member",
            "each member's gradient is scaled down to this norm",
            source=_DETAILS, bounds=(1e-6, 1e6),
        ),
        Hyperparameter(
            "target_kl", "float", 0.0, "member",
            "a member stops its update when its policy has moved 1.5 times this far; 0 never stops",
            source=_DETAILS, bounds=(0.0, 10.0),
        ),
        Hyperparameter(
            "horizon", "int", 32, "cohort",
            "steps that every environment takes between two updates",
            source=_PPO_PAPER, bounds=(1, 65536),
        ),
        Hyperparameter(
            "minibatch_size", "int", 2048, "cohort",
            "transitions of one member in a minibatch",
            source=_PPO_PAPER, bounds=(1, 1 << 24),
        ),
        Hyperparameter(
            "epochs", "int", 4, "cohort",
            "passes over the rollout in an update",
            source=_PPO_PAPER, bounds=(1, 1000),
        ),
        Hyperparameter(
            "hidden_sizes", "sizes", (64, 64), "network",
            "width of every hidden layer of actor and critic",
            source=_PPO_PAPER, bounds=(1, 16384),
        ),
        Hyperparameter(
            "activation", "choice", "tanh", "network",
            "what follows a hidden layer",
            source=_STUDY, choices=("tanh", "relu", "elu"),
        ),
        Hyperparameter(
            "normalize_observations", "bool", True, "network",
            "by a running mean and variance, clipped to ±10",
            source=_DETAILS,
        ),
        Hyperparameter(
            "normalize_values", "bool", True, "network",
            "the critic learns returns of mean 0 and deviation 1",
            source="van Hasselt et al. 2016, arXiv:1602.07714 (Pop-Art)",
        ),
        Hyperparameter(
            "initial_log_std", "float", 0.0, "network",
            "logarithm of the first standard deviation, in units in which a bounded action is in [-1, 1]",
            source=_STUDY, bounds=(-10.0, 3.0),
        ),
        Hyperparameter(
            "normalize_advantages", "bool", True, "cohort",
            "to mean 0 and deviation 1 over a member's rollout",
            source=_DETAILS,
        ),
    ),
)  # fmt: skip

ALGORITHMS: Mapping[str, AlgorithmInfo] = {info.name: info for info in (_PPO,)}


def find_algorithm(name: str) -> AlgorithmInfo:
    """The algorithm called `name`; InvalidInput with the nearest names if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    nearest = difflib.get_close_matches(name, ALGORITHMS, n=3, cutoff=0.5) or sorted(ALGORITHMS)
    message = f"unknown algorithm {name!r}; did you mean {' or '.join(nearest)}?"
    violation = FieldViolation("search.algorithms", message)
    raise InvalidInput(message, violations=[violation], reason="UNKNOWN_ALGORITHM", algorithm=name)


def check_action_space(algorithm: str, space: Space) -> None:
    """InvalidInput, saying what would be right, unless `algorithm` can act in `space`."""
    info = find_algorithm(algorithm)
    supported = " and ".join(kind.__name__.removesuffix("Space") for kind in info.action_spaces)
    problem = ""
    if not isinstance(space, info.action_spaces):
        problem = f"{algorithm} cannot act in {describe(space)}; it acts in {supported}"
    elif isinstance(space, BoxSpace) and not space.dtype.startswith("float"):
        problem = f"{algorithm} cannot act in a Box of {space.dtype}; it acts in a Box of float"
    elif isinstance(space, BoxSpace) and space.size == 0:
        problem = f"{algorithm} cannot act in an empty {describe(space)}"
    if problem:
        capable = sorted(name for name, other in ALGORITHMS.items() if isinstance(space, other.action_spaces))
        if capable and algorithm not in capable:
            problem += f"; {' or '.join(capable)} can"
        violation = FieldViolation("search.algorithms", problem)
        raise InvalidInput(problem, violations=[violation], reason="ACTION_SPACE_UNSUPPORTED", algorithm=algorithm)
