"""The search ranges of a job: complete hyperparameters for new agents, drawn or mutated within the
ranges.

`configuration` gives its portfolio: of each algorithm the defaults, then the points of one Sobol
sequence. Points that fill the space evenly: a few of them leave no part of it out, as independent
draws do. Sobol 1967; the direction numbers are those of Joe and Kuo 2008, doi:10.1137/070709359."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from podracer_core.catalogue import (
    Fixed,
    HyperparameterValue,
    Range,
    Scope,
    find_algorithm,
    mutate,
    sample,
)
from podracer_core.errors import InvalidInput

Shape = tuple[str, tuple[tuple[str, HyperparameterValue], ...]]
"""An algorithm and its shared hyperparameters: agents of one shape can be stacked into one
cohort."""


def shape_of(algorithm: str, hyperparameters: Mapping[str, HyperparameterValue]) -> Shape:
    """The shape of an agent: everything that may not differ between the members of a cohort."""
    knobs = find_algorithm(algorithm).hyperparameters
    shared = sorted(knob.name for knob in knobs if knob.scope != "member")
    return algorithm, tuple((name, hyperparameters[name]) for name in shared)


def weights_shape(algorithm: str, hyperparameters: Mapping[str, HyperparameterValue]) -> Shape:
    """The part of an agent's shape that its network depends on: it may not change if the agent is
    to keep its weights."""
    knobs = find_algorithm(algorithm).hyperparameters
    network = sorted(knob.name for knob in knobs if not knob.keeps_weights)
    return algorithm, tuple((name, hyperparameters[name]) for name in network)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The search space of a job.

    shares   algorithm → its share of fresh agents, in the job's order
    ranges   algorithm → hyperparameter → range; unnamed hyperparameters keep their default
    """

    shares: Mapping[str, float]
    ranges: Mapping[str, Mapping[str, Range]]

    def defaults(self, algorithm: str, random: Random) -> dict[str, HyperparameterValue]:
        """The catalogue's defaults, drawn anew only where the search excludes them: a sound first
        agent."""
        values = self.sample(algorithm, random)
        for name, default in find_algorithm(algorithm).defaults().items():
            search = self.ranges[algorithm].get(name)
            if search is None or search.contains(default):
                values[name] = default
        return values

    def sample(self, algorithm: str, random: Random) -> dict[str, HyperparameterValue]:
        """Every hyperparameter of `algorithm`: drawn where it is searched, the default
        elsewhere."""
        values: dict[str, HyperparameterValue] = find_algorithm(algorithm).defaults()
        for name, search in sorted(self.ranges[algorithm].items()):
            values[name] = sample(search, random)
        return values

    def mutate(
        self, algorithm: str, hyperparameters: Mapping[str, HyperparameterValue], random: Random
    ) -> dict[str, HyperparameterValue]:
        """A neighbour of `hyperparameters`: each searched one that is a member's own is perturbed
        or drawn anew.

        What a cohort shares stays, so a child fits into its donor's weights and into its donor's
        cohort."""
        values = dict(hyperparameters)
        for name in self.mutable(algorithm):
            search = self.ranges[algorithm][name]
            values[name] = mutate(search, values[name], random)
        return values

    def vary(
        self,
        algorithm: str,
        hyperparameters: Mapping[str, HyperparameterValue],
        scope: Scope,
        random: Random,
    ) -> dict[str, HyperparameterValue]:
        """`hyperparameters` with one searched one of `scope` perturbed or drawn anew; there is
        one."""
        names = self.mutable(algorithm, scope)
        name = names[int(random.random() * len(names))]
        return {
            **hyperparameters,
            name: mutate(self.ranges[algorithm][name], hyperparameters[name], random),
        }

    def cross(
        self, parents: Sequence[Mapping[str, HyperparameterValue]], algorithm: str, random: Random
    ) -> dict[str, HyperparameterValue]:
        """A child's hyperparameters: each searched one of a member from a random parent; the others
        are alike.

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

    def check(
        self,
        algorithm: str,
        hyperparameters: Mapping[str, HyperparameterValue],
        parents: Sequence[Mapping[str, HyperparameterValue]] = (),
    ) -> None:
        """Raises InvalidInput unless every hyperparameter is there, of its type, and where the job
        searches.

        What one of the `parents` has is right as well: founders and users' forks may be elsewhere.
        """
        info = find_algorithm(algorithm)
        defaults = info.defaults()
        if odd := sorted(set(hyperparameters) ^ set(defaults)):
            raise InvalidInput(
                f"hyperparameters of {algorithm} are missing or unknown: {', '.join(map(str, odd))}"
            )
        for knob in info.hyperparameters:
            value, search = hyperparameters[knob.name], self.ranges[algorithm].get(knob.name)
            knob.check(value)
            if type(value) is not type(defaults[knob.name]):
                expected = type(defaults[knob.name]).__name__
                raise InvalidInput(
                    f"{knob.name} is {value!r} of type {type(value).__name__}, expected {expected}"
                )
            if any(parent.get(knob.name) == value for parent in parents):
                continue
            if search is None and value != defaults[knob.name]:
                raise InvalidInput(
                    f"{knob.name} is {value!r}, expected its default {defaults[knob.name]!r}: not "
                    "searched"
                )
            if search is not None and not search.contains(value):
                raise InvalidInput(f"{knob.name} is {value!r}, which is not inside {search}")

    def with_shape(
        self, hyperparameters: Mapping[str, HyperparameterValue], shape: Shape
    ) -> dict[str, HyperparameterValue]:
        """`hyperparameters` with the shared ones of `shape`."""
        return {**hyperparameters, **dict(shape[1])}


BITS = 32

_POLYNOMIALS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (0, (1,)), (1, (1, 3)), (1, (1, 3, 1)), (2, (1, 1, 1)), (1, (1, 1, 3, 3)), (4, (1, 3, 5, 13)),
    (2, (1, 1, 5, 5, 17)), (4, (1, 1, 5, 5, 5)), (7, (1, 1, 7, 11, 19)), (11, (1, 1, 5, 1, 1)),
    (13, (1, 1, 1, 3, 11)), (14, (1, 3, 5, 5, 31)), (1, (1, 3, 3, 9, 7, 49)),
    (13, (1, 1, 1, 15, 21, 21)), (16, (1, 3, 1, 13, 27, 49)),
)  # fmt: skip
"""Coefficients and first direction numbers of the second coordinate and those that follow."""

DIMENSIONS = len(_POLYNOMIALS) + 1
"""Coordinates of a point; further ones come by chance."""


def configuration(
    space: SearchSpace, algorithm: str, number: int, seed: int
) -> dict[str, HyperparameterValue]:
    """Every hyperparameter of an algorithm's `number`-th configuration, from 0: the defaults as far
    as the search has them, then drawn by a point of the sequence, which `seed` shifts."""
    point = _Point(seed)
    point.number = number
    return space.sample(algorithm, point) if number else space.defaults(algorithm, point)


class _Point(Random):
    """Gives one coordinate of point `number` after the other where a random number is asked for."""

    number = drawn = 0

    def random(self) -> float:
        """The next coordinate, in [0, 1)."""
        shift = super().random()  # of this coordinate, the same for every point
        self.drawn += 1
        if self.drawn > DIMENSIONS:
            return Random(f"{shift} {self.number}").random()  # noqa: S311 - repeatable is what it must be
        return (coordinate(self.number, self.drawn - 1) + shift) % 1.0


def coordinate(number: int, dimension: int) -> float:
    """A coordinate, in [0, 1), of the Sobol sequence's `number`-th point; the first is the
    origin."""
    found = 0
    for bit, direction in enumerate(_directions(dimension)):
        if number >> bit & 1:
            found ^= direction
    return found / (1 << BITS)


@functools.cache
def _directions(dimension: int) -> tuple[int, ...]:
    """One for each bit of a point's number, shifted to the top of a word: eq. 2 of Joe and Kuo."""
    if dimension == 0:
        return tuple(1 << (BITS - 1 - bit) for bit in range(BITS))
    coefficients, first = _POLYNOMIALS[dimension - 1]
    degree, numbers = len(first), list(first)
    for index in range(degree, BITS):
        oldest = numbers[index - degree]
        number = oldest ^ (oldest << degree)
        for step in range(1, degree):
            number ^= (coefficients >> (degree - 1 - step) & 1) * numbers[index - step] << step
        numbers.append(number)
    return tuple(number << (BITS - 1 - bit) for bit, number in enumerate(numbers))
