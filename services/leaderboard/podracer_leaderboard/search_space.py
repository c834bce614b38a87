"""The search ranges of a job: complete hyperparameters for new agents, drawn or mutated within the ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.hyperparameters import Scope
from podracer_core.catalogue.ranges import Choice, Fixed, HyperparameterValue, IntegerInterval, Interval, Range
from podracer_core.errors import InvalidInput

RESAMPLE_PROBABILITY = 0.25
"""How often a mutation draws anew instead of perturbing: Jaderberg et al. 2017, arXiv:1711.09846, 4.1."""

Shape = tuple[str, tuple[tuple[str, HyperparameterValue], ...]]
"""An algorithm and its shared hyperparameters: agents of one shape can be stacked into one cohort."""


FACTORS = (0.8, 1.2)
"""What a perturbation multiplies by: Jaderberg et al. 2017, Population Based Training, arXiv:1711.09846, 4.1."""


def shape_of(algorithm: str, hyperparameters: Mapping[str, HyperparameterValue]) -> Shape:
    """The shape of an agent: everything that may not differ between the members of a cohort."""
    knobs = find_algorithm(algorithm).hyperparameters
    shared = sorted(knob.name for knob in knobs if knob.scope != "member")
    return algorithm, tuple((name, hyperparameters[name]) for name in shared)


def weights_shape(algorithm: str, hyperparameters: Mapping[str, HyperparameterValue]) -> Shape:
    """What may not change if an agent is to keep its weights: of its shape, the part that its network depends on."""
    knobs = find_algorithm(algorithm).hyperparameters
    network = sorted(knob.name for knob in knobs if knob.scope == "network")
    return algorithm, tuple((name, hyperparameters[name]) for name in network)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What a job searches.

    shares   algorithm → its share of fresh agents, in the job's order
    ranges   algorithm → hyperparameter → range; what is not named keeps its default
    """

    shares: Mapping[str, float]
    ranges: Mapping[str, Mapping[str, Range]]

    def defaults(self, algorithm: str, random: Random) -> dict[str, HyperparameterValue]:
        """The catalogue's defaults, drawn anew only where the search excludes them: a sound first agent."""
        values = self.sample(algorithm, random)
        for name, default in find_algorithm(algorithm).defaults().items():
            search = self.ranges[algorithm].get(name)
            if search is None or search.contains(default):
                values[name] = default
        return values

    def sample(self, algorithm: str, random: Random) -> dict[str, HyperparameterValue]:
        """Every hyperparameter of `algorithm`: drawn where it is searched, the default elsewhere."""
        values: dict[str, HyperparameterValue] = find_algorithm(algorithm).defaults()
        for name, search in sorted(self.ranges[algorithm].items()):
            values[name] = sample(search, random)
        return values

    def mutate(
        self, algorithm: str, hyperparameters: Mapping[str, HyperparameterValue], random: Random
    ) -> dict[str, HyperparameterValue]:
        """A neighbour of `hyperparameters`: each searched one that is a member's own is perturbed or drawn anew.

        What a cohort shares stays, so a child fits into its donor's weights and into its donor's cohort.
        """
        values = dict(hyperparameters)
        for name in self.mutable(algorithm):
            search = self.ranges[algorithm][name]
            values[name] = _mutated(search, values[name], random)
        return values

    def vary(
        self, algorithm: str, hyperparameters: Mapping[str, HyperparameterValue], scope: Scope, random: Random
    ) -> dict[str, HyperparameterValue]:
        """`hyperparameters` with one searched one of `scope` perturbed or drawn anew; there is one."""
        names = self.mutable(algorithm, scope)
        name = names[int(random.random() * len(names))]
        return {**hyperparameters, name: _mutated(self.ranges[algorithm][name], hyperparameters[name], random)}

    def cross(
        self, parents: Sequence[Mapping[str, HyperparameterValue]], algorithm: str, random: Random
    ) -> dict[str, HyperparameterValue]:
        """Each searched hyperparameter of a member from one of its parents, drawn for it; the others are alike.

        One parent's own value has proved itself, which a mean of both has not.
        """
        values = dict(parents[0])
        if len(parents) > 1:
            for name in self.mutable(algorithm):
                values[name] = parents[int(random.random() * len(parents))][name]
        return values

    def mutable(self, algorithm: str, scope: Scope = "member") -> list[str]:
        """The hyperparameters of `scope` that are searched, sorted."""
        ranges = self.ranges[algorithm]
        knobs = find_algorithm(algorithm).hyperparameters
        searched = (knob.name for knob in knobs if knob.scope == scope and knob.name in ranges)
        return sorted(name for name in searched if not isinstance(ranges[name], Fixed))

    def check(self, algorithm: str, hyperparameters: Mapping[str, HyperparameterValue]) -> None:
        """Raises InvalidInput unless every hyperparameter is there, of its type, and where the job searches."""
        info = find_algorithm(algorithm)
        defaults = info.defaults()
        if odd := sorted(set(hyperparameters) ^ set(defaults)):
            raise InvalidInput(f"hyperparameters of {algorithm} are missing or unknown: {', '.join(map(str, odd))}")
        for knob in info.hyperparameters:
            value, search = hyperparameters[knob.name], self.ranges[algorithm].get(knob.name)
            knob.check(value)
            if type(value) is not type(defaults[knob.name]):
                expected = type(defaults[knob.name]).__name__
                raise InvalidInput(f"{knob.name} is {value!r} of type {type(value).__name__}, expected {expected}")
            if search is None and value != defaults[knob.name]:
                raise InvalidInput(
                    f"{knob.name} is {value!r}, expected its default {defaults[knob.name]!r}: not searched"
                )
            if search is not None and not search.contains(value):
                raise InvalidInput(f"{knob.name} is {value!r}, which is not inside {search}")

    def with_shape(
        self, hyperparameters: Mapping[str, HyperparameterValue], shape: Shape
    ) -> dict[str, HyperparameterValue]:
        """`hyperparameters` with the shared ones of `shape`."""
        return {**hyperparameters, **dict(shape[1])}


def _mutated(search: Range, value: HyperparameterValue, random: Random) -> HyperparameterValue:
    return sample(search, random) if random.random() < RESAMPLE_PROBABILITY else perturb(search, value, random)


def sample(search: Range, random: Random) -> HyperparameterValue:
    """A value drawn from the range; only `random.random()` is used, which every Python gives alike."""
    match search:
        case Fixed(value):
            return value
        case Choice(values):
            return values[_index(len(values), random)]
        case Interval(low, high, logarithmic, near_one):
            if logarithmic and near_one:
                return _clipped(search, 1.0 - _between(_least_distance(search), 1.0 - low, True, random))
            return _between(low, high, logarithmic, random)
        case IntegerInterval(low, high, False):
            return low + _index(high - low + 1, random)
        case IntegerInterval(low, high):
            # Half a step beyond both ends, so that the ends are as likely as their neighbours.
            drawn = round(_between(low - 0.5, high + 0.5, True, random))
            return min(max(drawn, low), high)


def perturb(search: Range, value: HyperparameterValue, random: Random) -> HyperparameterValue:
    """A neighbour of `value`, which may be outside: agents of another job may found this one's.

    A number moves x 0.8 or x 1.2 (a whole one at least one step; `near_one` its distance from 1), whichever stays
    inside; where neither does, a real one is clipped and a whole one moves one step. A choice moves to the value before
    or after it in the list, and is drawn where it is not there.
    """
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


def _least_distance(search: Interval) -> float:
    """From 1, whose own logarithm is infinite: a hundredth of the greatest stands for it."""
    return max(1.0 - search.high, 0.0) or (1.0 - search.low) / 100.0


def _clipped(search: Interval, value: float) -> float:
    return min(max(value, search.low), search.high)


def _index(length: int, random: Random) -> int:
    return min(int(random.random() * length), length - 1)


def _between(low: float, high: float, logarithmic: bool, random: Random) -> float:
    u = random.random()
    drawn = math.exp(math.log(low) + u * (math.log(high) - math.log(low))) if logarithmic else low + u * (high - low)
    return min(max(drawn, low), high)  # rounding may step over an end
