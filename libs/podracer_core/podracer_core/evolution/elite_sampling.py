"""The `elites` generator: children's hyperparameters are drawn from where the best have theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import NormalDist
from typing import ClassVar

from podracer_core.catalogue.ranges import HyperparameterValue, IntegerInterval, Interval, Range
from podracer_core.evolution.agents import Action, Agent, NewAgent, Start
from podracer_core.evolution.breeding import Breeding, Vacancy
from podracer_core.evolution.elites import elite_statistics
from podracer_core.evolution.tournament import Tournament

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
