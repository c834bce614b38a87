"""The portfolio of a search space: of each algorithm the defaults, then the points of one Sobol
sequence.

Points that fill the space evenly: a few of them leave no part of it out, as independent draws do.
Sobol 1967; the direction numbers are those of Joe and Kuo 2008, doi:10.1137/070709359."""

from __future__ import annotations

import functools
from random import Random

from podracer_core.catalogue.ranges import HyperparameterValue
from podracer_core.evolution.search_space import SearchSpace

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
