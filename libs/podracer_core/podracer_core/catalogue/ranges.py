"""Search ranges of a hyperparameter, for catalogue, job files and leaderboards."""

from __future__ import annotations

from dataclasses import dataclass

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
