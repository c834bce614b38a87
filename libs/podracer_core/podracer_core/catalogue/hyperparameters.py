"""Hyperparameters: type, range, scope within a cohort, and search range, from which values are
drawn and in which they are mutated; and those that several algorithms share.

Only hyperparameters that members may differ in have a search range, and of these only those that
have an effect while all others are at their default: the priority exponent has none while replay is
uniform.

A shared hyperparameter has at most one value in an automatic search, which may differ from the
default of its source. Two values would make two shapes, so twice as many cohorts of half the agents
each, and a population of 8 would need twice as long for its first round. Those values were
measured: see "What auto looks at" in docs/job-file.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from podracer_core.config import schedule_advice
from podracer_core.errors import FieldViolation, InvalidInput

HyperparameterValue = float | int | bool | str | tuple[int, ...]
"""A number, a flag, a word, or whole numbers in order (`hidden_sizes`)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Real numbers from `low` to `high`, even in themselves or in their logarithm.

    near_one  logarithm and perturbation are of 1 − x, as for a discount; x ≤ 1. Set from the
              hyperparameter, never in a job file
    """

    low: float
    high: float
    logarithmic: bool = False
    near_one: bool = False

    @property
    def is_logarithmic(self) -> bool:
        """Whether even in the logarithm of the value itself."""
        return self.logarithmic and not self.near_one

    def contains(self, value: HyperparameterValue) -> bool:
        """Whether `value` is one of the range."""
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
        )


@dataclass(frozen=True, slots=True)
class IntegerInterval:
    """Whole numbers from `low` to `high`, both included, even in themselves or in their
    logarithm."""

    low: int
    high: int
    logarithmic: bool = False

    @property
    def is_logarithmic(self) -> bool:
        """Whether even in the logarithm; see Interval."""
        return self.logarithmic

    def contains(self, value: HyperparameterValue) -> bool:
        """Whether `value` is one of the range."""
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values. Each further value of a shared hyperparameter makes another shape of
    cohort."""

    values: tuple[HyperparameterValue, ...]

    def contains(self, value: HyperparameterValue) -> bool:
        """Whether `value` is one of them."""
        return value in self.values


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed value: it is not searched, and replaces the default."""

    value: HyperparameterValue

    def contains(self, value: HyperparameterValue) -> bool:
        """Whether `value` is it."""
        return value == self.value


Range = Interval | IntegerInterval | Choice | Fixed


Kind = Literal["float", "int", "bool", "sizes", "choice"]
Scope = Literal["member", "cohort", "network"]

SearchRange = Interval
"""The name of plug-ins for an interval of an automatic search."""

_MOST_SIZES = 64


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One hyperparameter of an algorithm.

    scope   "member": every member of a cohort has its own, and mutation may change it at any time;
            "cohort": one for all members, weights are kept when it changes;
            "network": one for all members, another value means fresh weights
    kind    "sizes" is a list of positive integers, one per hidden layer; "choice" one of `choices`
    bounds  inclusive; of every element if kind is "sizes"
    search  the range of an automatic search. None: the default, unless the job has a range
    source  the paper or code that the default is from
    near_one  the distance from 1 matters, as for a discount: logarithm and perturbation are of 1 −
              x
    former    of agents that were made before there was this hyperparameter; None: the default
    """

    name: str
    kind: Kind
    default: HyperparameterValue
    scope: Scope
    meaning: str
    source: str = ""
    bounds: tuple[float, float] | None = None
    search: Range | None = None
    choices: tuple[str, ...] = ()
    near_one: bool = False
    former: HyperparameterValue | None = None

    @property
    def keeps_weights(self) -> bool:
        """Whether an agent with another value can continue from its weights."""
        return self.scope != "network"

    def typed(self, value: HyperparameterValue) -> HyperparameterValue:
        """The value in its type: `1` becomes `1.0` for a real number."""
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return value

    def check(self, value: object) -> None:
        """Raises InvalidInput unless `value` has the right type and is in the range."""
        problem = self._problem(value)
        if problem:
            problem = f"{problem}, not {value!r}{schedule_advice(value)}"
            violation = FieldViolation(self.name, problem)
            raise InvalidInput(
                f"{self.name} {problem}", violations=[violation], hyperparameter=self.name
            )

    def _problem(self, value: object) -> str:
        match self.kind:
            case "bool":
                return "" if isinstance(value, bool) else "must be true or false"
            case "choice":
                return "" if value in self.choices else f"must be one of {', '.join(self.choices)}"
            case "sizes":
                if isinstance(value, str) or not isinstance(value, Sequence) or not value:
                    return "must be a list of whole numbers"
                if len(value) > _MOST_SIZES:
                    return f"must be a list of at most {_MOST_SIZES} whole numbers"
                problems = (
                    problem for size in value if (problem := self._number_problem(size, int))
                )
                return next((f"must be a list each of which {problem}" for problem in problems), "")
            case "int":
                return self._number_problem(value, int)
            case "float":
                return self._number_problem(value, float)

    def _number_problem(self, value: object, kind: type) -> str:
        number = "a whole number" if kind is int else "a number"
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            return f"must be {number}"
        if self.bounds is None:
            return ""
        low, high = self.bounds
        # Written so that NaN fails too.
        return "" if low <= value <= high else f"must be {number} from {low:g} to {high:g}"


FACTORS = (0.8, 1.2)
"""The factors of a perturbation: Jaderberg et al. 2017, Population Based Training,
arXiv:1711.09846, 4.1."""

RESAMPLE_PROBABILITY = 0.25
"""The probability that a mutation draws anew instead of perturbing, from the same paper."""


def sample(search: Range, random: Random) -> HyperparameterValue:
    """A value drawn from the range; uses only `random.random()`, which is the same in every version
    of Python."""
    match search:
        case Fixed(value):
            return value
        case Choice(values):
            return values[_index(len(values), random)]
        case Interval(low, high, logarithmic, near_one):
            if logarithmic and near_one:
                return _clipped(
                    search, 1.0 - _between(_least_distance(search), 1.0 - low, True, random)
                )
            return _between(low, high, logarithmic, random)
        case IntegerInterval(low, high, False):
            return low + _index(high - low + 1, random)
        case IntegerInterval(low, high):
            # Half a step beyond both ends, so that the ends are as likely as their neighbours.
            drawn = round(_between(low - 0.5, high + 0.5, True, random))
            return min(max(drawn, low), high)


def perturb(search: Range, value: HyperparameterValue, random: Random) -> HyperparameterValue:
    """A neighbour of `value`, which may be outside the range: founders come from other jobs.

    A number is multiplied by 0.8 or 1.2 (a whole one moves at least one step; for `near_one` it is
    the distance from 1), whichever stays inside. If neither does, a real one is clipped and a whole
    one moves one step. A choice moves to the value before or after it in the list, or is drawn if
    it is not in the list."""
    match search:
        case Fixed(fixed):
            return fixed
        case Choice(values):
            if value not in values:
                return sample(search, random)
            place = values.index(value)
            beside = [values[index] for index in (place - 1, place + 1) if 0 <= index < len(values)]
            return beside[_index(len(beside), random)] if beside else value
        case Interval():
            assert isinstance(value, int | float), "an interval holds numbers"
            if search.near_one:
                distance = max(1.0 - value, _least_distance(search))
                moved = [1.0 - distance * factor for factor in FACTORS]
            else:
                moved = [value * factor for factor in FACTORS]
            candidates = list(filter(search.contains, moved)) or moved
            return _clipped(search, candidates[_index(len(candidates), random)])
        case IntegerInterval(low, high):
            assert isinstance(value, int), "an integer interval holds whole numbers"
            value = min(max(value, low), high)
            factors = tuple(round(value * factor) for factor in FACTORS)
            far = [number for number in factors if number != value and search.contains(number)]
            inside = far or [number for number in (value - 1, value + 1) if search.contains(number)]
            return inside[_index(len(inside), random)]


def mutate(search: Range, value: HyperparameterValue, random: Random) -> HyperparameterValue:
    """A neighbour of `value`, or sometimes one drawn anew."""
    return (
        sample(search, random)
        if random.random() < RESAMPLE_PROBABILITY
        else perturb(search, value, random)
    )


def _least_distance(search: Interval) -> float:
    """The least distance from 1, whose own logarithm is infinite: a hundredth of the greatest
    stands for it."""
    return max(1.0 - search.high, 0.0) or (1.0 - search.low) / 100.0


def _clipped(search: Interval, value: float) -> float:
    return min(max(value, search.low), search.high)


def _index(length: int, random: Random) -> int:
    return min(int(random.random() * length), length - 1)


def _between(low: float, high: float, logarithmic: bool, random: Random) -> float:
    u = random.random()
    drawn = (
        math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        if logarithmic
        else low + u * (high - low)
    )
    return min(max(drawn, low), high)  # rounding may step over an end


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
