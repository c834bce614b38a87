"""The `elites` generator: children's hyperparameters are drawn from where the best have theirs.
Statistics of the elites' hyperparameters, and the progress of each lineage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import ClassVar

from podracer_core.catalogue import HyperparameterValue, IntegerInterval, Interval, Range
from podracer_core.evolution.agents import Action, Agent, NewAgent, Start
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.tournament import Tournament

IMPROVEMENT_RUNGS = 3
"""Number of its last rungs over which a lineage's improvement is measured."""


@dataclass(frozen=True, slots=True)
class EliteStatistics:
    """Mean [n] and covariance [n, n] of n continuous hyperparameters, of the logarithm where that
    is searched."""

    names: tuple[str, ...]
    logarithmic: tuple[bool, ...]
    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    count: int

    @property
    def variance(self) -> tuple[float, ...]:
        return tuple(row[index] for index, row in enumerate(self.covariance))


def elite_statistics(
    elites: Sequence[Mapping[str, HyperparameterValue]], ranges: Mapping[str, Range]
) -> EliteStatistics:
    """Sample mean and covariance (divided by count - 1; zeros for fewer than two) of the elites'
    hyperparameters."""
    numbers = {
        name: each
        for name, each in sorted(ranges.items())
        if isinstance(each, Interval | IntegerInterval)
    }
    names = tuple(numbers)
    logarithmic = tuple(search.is_logarithmic for search in numbers.values())
    count = len(elites)
    columns = [
        [_coordinate(elite[name], search) for elite in elites] for name, search in numbers.items()
    ]
    mean = tuple(math.fsum(column) / max(count, 1) for column in columns)
    centred = [
        [value - middle for value in column] for column, middle in zip(columns, mean, strict=True)
    ]
    covariance = tuple(
        tuple(_inner(left, right) / max(count - 1, 1) for right in centred) for left in centred
    )
    return EliteStatistics(names, logarithmic, mean, covariance, count)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A finished round of an agent of a lineage; `cost_s` is of this round alone."""

    lineage: str
    agent: str
    rung: int
    score: float | None
    cost_s: float


@dataclass(frozen=True, slots=True)
class LineageStatistics:
    """How a lineage does: `improvement` is the growth of its best score for each device second."""

    lineage: str
    agent_count: int
    best_score: float
    improvement: float
    cost_s: float


def lineage_statistics(rounds: Iterable[RoundResult]) -> list[LineageStatistics]:
    """Every lineage of which a round was judged, the fastest improving first."""
    by_lineage: dict[str, list[RoundResult]] = {}
    for each in rounds:
        by_lineage.setdefault(each.lineage, []).append(each)
    statistics = [
        _lineage(lineage, of_it)
        for lineage, of_it in by_lineage.items()
        if _best(of_it) is not None
    ]
    return sorted(statistics, key=lambda each: (-each.improvement, -each.best_score, each.lineage))


def _lineage(lineage: str, rounds: Sequence[RoundResult]) -> LineageStatistics:
    newest = max(each.rung for each in rounds)
    recent = [each for each in rounds if each.rung > newest - IMPROVEMENT_RUNGS]
    before = _best([each for each in rounds if each.rung <= newest - IMPROVEMENT_RUNGS])
    if before is None:  # young: from its first judged rung on
        first = min(each.rung for each in rounds if each.score is not None)
        before = _best([each for each in rounds if each.rung == first])
        recent = [each for each in rounds if each.rung > first]
    best, cost_s = _best(rounds), math.fsum(each.cost_s for each in recent)
    assert best is not None and before is not None, "the lineage has a judged round"
    return LineageStatistics(
        lineage=lineage,
        agent_count=len({each.agent for each in rounds}),
        best_score=best,
        improvement=(best - before) / cost_s if cost_s > 0 else 0.0,
        cost_s=math.fsum(each.cost_s for each in rounds),
    )


def _best(rounds: Iterable[RoundResult]) -> float | None:
    return max((each.score for each in rounds if each.score is not None), default=None)


def _coordinate(value: HyperparameterValue, search: Interval | IntegerInterval) -> float:
    assert isinstance(value, int | float), "a continuous range holds numbers"
    return math.log(value) if search.is_logarithmic else float(value)


def _inner(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


MINIMUM_ELITES = 3
"""Fewer have no covariance to speak of."""

Matrix = Sequence[Sequence[float]]


class EliteBreeding(Breeding):
    """Children of the best donor, with hyperparameters drawn around those of the elites of its
    algorithm."""

    def _child(self, donor: Agent, pool: Sequence[Agent], vacancy: Vacancy) -> NewAgent:
        best = pool[0]
        elites = [elite for elite in self._population.elites if elite.algorithm == best.algorithm]
        if len(elites) < MINIMUM_ELITES:
            return super()._child(donor, pool, vacancy)
        mutated = self._space.mutate(best.algorithm, best.hyperparameters, self._random)
        ranges = {
            name: self._space.ranges[best.algorithm][name]
            for name in self._space.mutable(best.algorithm)
        }
        drawn = sample_around([elite.hyperparameters for elite in elites], ranges, self._random)
        values = self._regrouped(best, {**mutated, **drawn}, vacancy)
        start = Start.NOISE if self._rules.noise_scale > 0 else Start.COPY
        return self._create(Action.EXPLOIT, best.algorithm, values, vacancy, start, (best,))


class Elites(Tournament):
    """A tournament whose children are sampled from the elites' mean and covariance, as in the
    cross-entropy method.

    Rubinstein 1999, "The cross-entropy method for combinatorial and continuous optimization", as
    used for policies by Szita and Lőrincz 2006. Different from there: weights come from the best by
    copy, so only the hyperparameters that members have to themselves are drawn, what is no number
    is mutated, and elites change one by one. With fewer than three elites of an algorithm it is the
    tournament."""

    breeding: ClassVar[type[Breeding]] = EliteBreeding


def sample_around(
    elites: Sequence[Mapping[str, HyperparameterValue]], ranges: Mapping[str, Range], random: Random
) -> dict[str, HyperparameterValue]:
    """Continuous hyperparameters drawn from the normal distribution of the elites', clipped into
    their ranges."""
    continuous = {
        name: search
        for name, search in ranges.items()
        if isinstance(search, Interval | IntegerInterval)
    }
    statistics = elite_statistics(elites, continuous)
    widths = [_width(continuous[name]) for name in statistics.names]
    factor = cholesky(shrink(statistics.covariance, widths, statistics.count))
    normal = [_normal(random) for _ in widths]
    values: dict[str, HyperparameterValue] = {}
    for name, mean, row in zip(statistics.names, statistics.mean, factor, strict=True):
        coordinate = mean + math.fsum(
            weight * each for weight, each in zip(row, normal, strict=True)
        )
        values[name] = _clipped(continuous[name], coordinate)
    return values


def shrink(covariance: Matrix, widths: Sequence[float], count: int) -> list[list[float]]:
    """The covariance of n elites, and one observation of what is believed without any: fresh agents
    are drawn evenly.

    Of fewer elites than dimensions the covariance alone would be flat in some directions, and of
    elites that are all alike it would be a point from which no search comes away. The weights are
    those of the mean of an inverse Wishart posterior (Chen 1979) with n - 1 degrees of freedom seen
    and one believed."""
    seen = max(count - 1, 0)
    return [
        [
            (seen * value + (widths[i] ** 2 / 12.0 if i == j else 0.0)) / (seen + 1)
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(covariance)
    ]


def cholesky(matrix: Matrix) -> list[list[float]]:
    """The lower triangular L with L Lᵀ = `matrix`, which is positive definite."""
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - math.fsum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = math.sqrt(rest) if i == j else rest / lower[j][j]
    return lower


def _width(search: Interval | IntegerInterval) -> float:
    if search.is_logarithmic:
        return math.log(search.high) - math.log(search.low)
    return float(search.high - search.low)


def _clipped(search: Interval | IntegerInterval, coordinate: float) -> HyperparameterValue:
    value = math.exp(coordinate) if search.is_logarithmic else coordinate
    if isinstance(search, IntegerInterval):
        return min(max(round(value), search.low), search.high)
    return min(max(value, search.low), search.high)


def _normal(random: Random) -> float:
    """Standard normal, by nothing but `random.random()`, which every Python gives alike."""
    return NormalDist().inv_cdf(min(max(random.random(), 1e-12), 1.0 - 1e-12))
