"""Statistics of the elites' hyperparameters, and the progress of each lineage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from podracer_core.catalogue.ranges import HyperparameterValue, IntegerInterval, Interval, Range

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
