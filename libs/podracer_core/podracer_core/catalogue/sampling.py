"""Drawing from a search range, and mutating a value inside it. Every result is a value of the
range."""

from __future__ import annotations

import math
from random import Random

from podracer_core.catalogue.ranges import (
    Choice,
    Fixed,
    HyperparameterValue,
    IntegerInterval,
    Interval,
    Range,
)

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
