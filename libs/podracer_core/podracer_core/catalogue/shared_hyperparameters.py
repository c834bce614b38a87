"""The hyperparameters that several algorithms share.

Only hyperparameters that members may differ in have a search range, and of these only those that
have an effect while all others are at their default: the priority exponent has none while replay is
uniform.

A shared hyperparameter has at most one value in an automatic search, which may differ from the
default of its source. Two values would make two shapes, so twice as many cohorts of half the agents
each, and a population of 8 would need twice as long for its first round. Those values were
measured: see "What auto looks at" in docs/job-file.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from podracer_core.catalogue.hyperparameters import (
    Fixed,
    Hyperparameter,
    HyperparameterValue,
    SearchRange,
)
from podracer_core.errors import InvalidInput

_DDPG_PAPER = "Lillicrap et al. 2016, arXiv:1509.02971"
_SAC_PAPER = "Haarnoja et al. 2018, arXiv:1812.05905"
_PRIORITIES = "Schaul et al. 2016, Prioritized Experience Replay, arXiv:1511.05952"
_GSDE = "Raffin et al. 2021, arXiv:2005.05719"
_H_TERM = "ElegantRL's H-term (Hamiltonian) add-on"
_OURS = "ours: what a cohort needs"

OFF_POLICY = (
    Hyperparameter(
        "learning_rate", "float", 3e-4, "member",
        "step size of Adam",
        source=_SAC_PAPER, bounds=(1e-7, 1.0), search=SearchRange(3e-4, 3e-3, logarithmic=True),
    ),
    Hyperparameter(
        "gamma", "float", 0.99, "member",
        "discount of a reward one step later",
        source=_SAC_PAPER, bounds=(0.0, 1.0), search=SearchRange(0.97, 0.999, logarithmic=True),
        near_one=True,
    ),
    Hyperparameter(
        "target_rate", "float", 0.005, "member",
        "share of the way that a target network goes to the learned one when it moves; 1 copies it",
        source=_SAC_PAPER, bounds=(1e-6, 1.0), search=SearchRange(5e-3, 1e-1, logarithmic=True),
    ),
    Hyperparameter(
        "max_gradient_norm", "float", 0.0, "member",
        "the gradient of a member's actor, and of all its critics together, is scaled down to this "
        "norm; 0: never",
        source=_SAC_PAPER, bounds=(0.0, 1e6),
    ),
    Hyperparameter(
        "batch_size", "int", 256, "cohort",
        "transitions of one member in a gradient step",
        source=_SAC_PAPER, bounds=(1, 1 << 20),
    ),
    Hyperparameter(
        "horizon", "int", 1, "cohort",
        "steps that every environment takes between two updates",
        source=_SAC_PAPER, bounds=(1, 65536),
    ),
    Hyperparameter(
        "updates_per_step", "float", 1.0, "cohort",
        "gradient steps for each transition of one member",
        source=_SAC_PAPER, bounds=(1e-3, 1000.0),
    ),
    Hyperparameter(
        "learning_starts", "int", 1000, "cohort",
        "transitions of a member before it learns; until then its actions are uniformly random",
        source=_SAC_PAPER, bounds=(0, 1 << 40),
    ),
    Hyperparameter(
        "replay_capacity", "int", 0, "cohort",
        "transitions that a member keeps; 0: 1,000,000, or what 256 MiB hold where that is less, "
        "as of images",
        source=f"{_SAC_PAPER}; the 256 MiB: ours", bounds=(0, (1 << 31) - 1),
    ),
    Hyperparameter(
        "replay", "choice", "member", "cohort",
        "member: each learns from its own transitions; shared: from all members'; mixed: half and "
        "half",
        source=_OURS, choices=("member", "mixed", "shared"),
    ),
    Hyperparameter(
        "n_step", "int", 1, "cohort",
        "rewards that are summed before a target bootstraps",
        source="Hessel et al. 2018, Rainbow, arXiv:1710.02298", bounds=(1, 1024),
    ),
    Hyperparameter(
        "prioritized", "bool", False, "cohort",
        "transitions with a large error are replayed more often",
        source=_PRIORITIES,
    ),
    Hyperparameter(
        "priority_exponent", "float", 0.6, "member",
        "how much the error counts when transitions are drawn: 0 not at all, 1 in proportion",
        source=_PRIORITIES, bounds=(0.0, 1.0),
    ),
    Hyperparameter(
        "importance_exponent", "float", 0.4, "member",
        "of the importance weights at the start; grows linearly to 1",
        source=_PRIORITIES, bounds=(0.0, 1.0),
    ),
    Hyperparameter(
        "importance_steps", "int", 100_000, "cohort",
        "transitions of a member after which the importance exponent is 1",
        source=_PRIORITIES, bounds=(1, 1 << 40),
    ),
    Hyperparameter(
        "hidden_sizes", "sizes", (256, 256), "network",
        "width of every hidden layer of each network",
        source=_SAC_PAPER, bounds=(1, 16384),
    ),
    Hyperparameter(
        "activation", "choice", "relu", "network",
        "what follows a hidden layer",
        source=_SAC_PAPER, choices=("relu", "tanh", "elu"),
    ),
    Hyperparameter(
        "normalize_observations", "bool", False, "network",
        "by a running mean and variance, clipped to ±10",
        source=_DDPG_PAPER,
    ),
)  # fmt: skip
"""Hyperparameters of all off-policy algorithms."""

LAYER_NORM = (
    Hyperparameter(
        "layer_norm", "bool", False, "network",
        "every hidden layer of each network is normalized before its activation; not for images",
        source="Ba et al. 2016, Layer Normalization, arXiv:1607.06450",
    ),
)  # fmt: skip
"""Hyperparameters of algorithms whose networks have no normalization of their own."""

EXPLORATION_NOISE = (
    Hyperparameter(
        "exploration", "choice", "independent", "network",
        "independent: fresh noise each step; correlated: Ornstein-Uhlenbeck; state_dependent: a "
        "linear map of features; repeated: the same for some steps",
        source=f"{_DDPG_PAPER}; Rückstieß et al. 2008; {_GSDE}; Kim et al. 2026, arXiv:2604.04539",
        choices=("independent", "correlated", "state_dependent", "repeated"),
    ),
    Hyperparameter(
        "exploration_period", "int", 8, "cohort",
        "steps over which the noise stays alike: the time constant of the correlated noise, or the "
        "steps between two new matrices of the state-dependent one; the most that one noise is "
        "repeated",
        source=_GSDE, bounds=(1, 1024),
    ),
)  # fmt: skip
"""Hyperparameters of the exploration noise of continuous actors."""

H_TERM = (
    Hyperparameter(
        "h_term", "choice", "off", "cohort",
        "adds the Hamiltonian term to the actor's objective, over stored segments or over k steps",
        source=_H_TERM, choices=("off", "segment", "k_step"),
    ),
    Hyperparameter(
        "h_term_weight", "float", 0.125, "member",
        "weight of the H-term",
        source=_H_TERM, bounds=(0.0, 100.0),
    ),
    Hyperparameter(
        "h_term_steps", "int", 4, "cohort",
        "steps that one H-term looks at",
        source=_H_TERM, bounds=(1, 1024),
    ),
    Hyperparameter(
        "h_term_discount", "float", 0.8, "member",
        "weight of a step of the H-term relative to the one before",
        source=_H_TERM, bounds=(0.0, 1.0),
    ),
)  # fmt: skip
"""Hyperparameters of algorithms that support the H-term."""

SCHEDULE = (
    Hyperparameter(
        "learning_rate_schedule", "choice", "constant", "cohort",
        "how the learning rate falls to 0",
        source="Huang et al. 2022, The 37 Implementation Details of PPO",
        choices=("constant", "linear", "cosine"),
    ),
    Hyperparameter(
        "schedule_steps", "int", 1_000_000, "cohort",
        "transitions of a member over which the learning rate falls",
        source=_OURS, bounds=(1, 1 << 40),
    ),
)  # fmt: skip
"""Hyperparameters of on-policy algorithms: a decaying learning rate."""

QUICK_REPLAY: Mapping[str, HyperparameterValue] = {
    "hidden_sizes": (64, 64),
    "batch_size": 128,
    "horizon": 4,
    "updates_per_step": 0.5,
    "learning_starts": 500,
}
"""The values of OFF_POLICY in a search: gradient steps that cost a tenth of those with two layers
of 256 and batches of 256 on a CPU, where they take most of the time."""


def adapted(
    knobs: tuple[Hyperparameter, ...], source: str, **defaults: Any
) -> tuple[Hyperparameter, ...]:
    """`knobs` with other `defaults`, which are from `source`. Raises InvalidInput for an unknown
    name."""
    _check_names(knobs, defaults)
    return tuple(
        replace(knob, default=defaults[knob.name], source=source) if knob.name in defaults else knob
        for knob in knobs
    )


def sought(
    knobs: tuple[Hyperparameter, ...], **values: HyperparameterValue
) -> tuple[Hyperparameter, ...]:
    """`knobs` with these `values` in a search, independent of their defaults. Raises InvalidInput
    as `adapted`."""
    _check_names(knobs, values)
    return tuple(
        replace(knob, search=Fixed(values[knob.name])) if knob.name in values else knob
        for knob in knobs
    )


def _check_names(knobs: tuple[Hyperparameter, ...], values: Mapping[str, Any]) -> None:
    unknown = values.keys() - {knob.name for knob in knobs}
    if unknown:
        raise InvalidInput(f"no hyperparameter {', '.join(sorted(unknown))} to adapt")
