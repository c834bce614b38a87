"""One search range: drawing from it, and mutating a value inside it. Every result is a value of the range."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

Value = float | int | str | bool | tuple[int, ...]
"""A hyperparameter; a tuple holds the widths of hidden layers."""

FACTORS = (0.8, 1.2)
"""What a perturbation multiplies by: Jaderberg et al. 2017, Population Based Training, arXiv:1711.09846, 4.1."""


class Range(ABC):
    """The values that one hyperparameter may take in a search."""

    @property
    def is_continuous(self) -> bool:
        """Whether a mean and a variance of its values mean something."""
        return False

    @property
    def is_logarithmic(self) -> bool:
        return False

    @abstractmethod
    def contains(self, value: Value) -> bool: ...

    @abstractmethod
    def sample(self, random: Random) -> Value:
        """A value drawn from the range; only `random.random()` is used, which every Python gives alike."""

    @abstractmethod
    def perturb(self, value: Value, random: Random) -> Value:
        """A neighbour of `value`, which may be outside: agents of another job may found this one's."""


@dataclass(frozen=True, slots=True)
class Fixed(Range):
    """Not searched."""

    value: Value

    def contains(self, value: Value) -> bool:
        return value == self.value

    def sample(self, random: Random) -> Value:
        return self.value

    def perturb(self, value: Value, random: Random) -> Value:
        return self.value


@dataclass(frozen=True, slots=True)
class Interval(Range):
    """Real numbers from `low` to `high`, even in themselves or in their logarithm.

    near_one  the logarithm is of 1 − x, and that is what a perturbation multiplies, as of a discount; x ≤ 1
    """

    low: float
    high: float
    logarithmic: bool = False
    near_one: bool = False

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def is_logarithmic(self) -> bool:
        return self.logarithmic and not self.near_one

    def contains(self, value: Value) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def sample(self, random: Random) -> float:
        if self.logarithmic and self.near_one:
            return self._clipped(1.0 - _between(self._least_distance, 1.0 - self.low, True, random))
        return _between(self.low, self.high, self.logarithmic, random)

    def perturb(self, value: Value, random: Random) -> float:
        """`value`, or its distance from 1, × 0.8 or × 1.2, whichever stays inside; clipped where neither does."""
        assert isinstance(value, int | float), "an interval holds numbers"
        if self.near_one:
            distance = max(1.0 - value, self._least_distance)
            moved = [1.0 - distance * factor for factor in FACTORS]
        else:
            moved = [value * factor for factor in FACTORS]
        candidates = list(filter(self.contains, moved)) or moved
        return self._clipped(candidates[_index(len(candidates), random)])

    @property
    def _least_distance(self) -> float:
        """From 1, whose own logarithm is infinite: a hundredth of the greatest stands for it."""
        return max(1.0 - self.high, 0.0) or (1.0 - self.low) / 100.0

    def _clipped(self, value: float) -> float:
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True)
class IntegerInterval(Range):
    """Whole numbers from `low` to `high`, both included, even in themselves or in their logarithm."""

    low: int
    high: int
    logarithmic: bool = False

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def is_logarithmic(self) -> bool:
        return self.logarithmic

    def contains(self, value: Value) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def sample(self, random: Random) -> int:
        if not self.logarithmic:
            return self.low + _index(self.high - self.low + 1, random)
        # Half a step beyond both ends, so that the ends are as likely as their neighbours.
        drawn = round(_between(self.low - 0.5, self.high + 0.5, True, random))
        return min(max(drawn, self.low), self.high)

    def perturb(self, value: Value, random: Random) -> int:
        """`value` × 0.8 or × 1.2, at least one step, whichever stays inside; one step where neither does."""
        assert isinstance(value, int), "an integer interval holds whole numbers"
        value = min(max(value, self.low), self.high)
        factors = tuple(round(value * factor) for factor in FACTORS)
        far = [number for number in factors if number != value and self.contains(number)]
        inside = far or [number for number in (value - 1, value + 1) if self.contains(number)]
        return inside[_index(len(inside), random)]


@dataclass(frozen=True, slots=True)
class Choice(Range):
    """One of some values."""

    values: tuple[Value, ...]

    def contains(self, value: Value) -> bool:
        return value in self.values

    def sample(self, random: Random) -> Value:
        return self.values[_index(len(self.values), random)]

    def perturb(self, value: Value, random: Random) -> Value:
        """The value before or after it in the list; drawn where it is not there."""
        if value not in self.values:
            return self.sample(random)
        place = self.values.index(value)
        beside = [self.values[index] for index in (place - 1, place + 1) if 0 <= index < len(self.values)]
        return beside[_index(len(beside), random)] if beside else value


def _index(length: int, random: Random) -> int:
    return min(int(random.random() * length), length - 1)


def _between(low: float, high: float, logarithmic: bool, random: Random) -> float:
    u = random.random()
    drawn = math.exp(math.log(low) + u * (math.log(high) - math.log(low))) if logarithmic else low + u * (high - low)
    return min(max(drawn, low), high)  # rounding may step over an end
