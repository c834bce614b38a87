"""What trading.py concludes: tables of the test years, how sure it is, and a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from lab.plots import panels
from lab.report import Target, finish, print_table
from numpy.typing import NDArray
from trading_seasons import Returns, Season

from podracer_core.statistics import mean_block_length, resamples
from podracer_trading.backtest import DAYS_A_YEAR, largest_drawdown, sharpe_ratio

OURS, ENSEMBLE = "tournament", "ensemble"
Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]


def growth(returns: Array) -> Array:
    """Of the account over the whole time, the last axis: 0.1 is 10 %."""
    grown: Array = np.prod(1 + returns, axis=-1) - 1
    return grown


def yearly_mean(returns: Array) -> Array:
    """Mean daily return, times the days of a year."""
    mean: Array = returns.mean(axis=-1) * DAYS_A_YEAR
    return mean


def above(returns: Array, others: Array, statistic: Statistic) -> tuple[float, float, float]:
    """By how much the seeds' mean of a statistic of [S, D] is above that of [R, D], and its 95 %
    interval.

    Every resample of the stationary bootstrap takes the same days of all seeds and both sides, so
    the interval is about the days; how much seeds differ is told apart."""
    if returns.shape[1] != others.shape[1]:
        raise ValueError(
            f"{returns.shape[1]} days against {others.shape[1]}: both sides need the same"
        )
    block = math.ceil(mean_block_length(returns.mean(0) - others.mean(0)))
    parts = resamples(returns.shape[1], block)
    drawn = [
        statistic(returns[:, part]).mean(0) - statistic(others[:, part]).mean(0) for part in parts
    ]
    lower, upper = np.quantile(np.concatenate(drawn), [0.025, 0.975])
    return float(statistic(returns).mean() - statistic(others).mean()), float(lower), float(upper)


def report(found: Mapping[Season, Returns], seconds: float) -> None:
    """Every season's table, walks forward, and the closing line, whose targets are about the first
    season: a positive distance of the tournament from the best that is not made of it is the first
    place."""
    for season, returns in found.items():
        _print_season(season, returns, seconds)
    _print_walks(found)
    headline = next(iter(found.values()))
    figures = {
        "sharpe": {name: float(sharpe_ratio(each).mean()) for name, each in headline.items()},
        "return": {name: float(growth(each).mean()) for name, each in headline.items()},
    }
    targets = {
        f"{what}_above_the_best_other": Target(_lead(values), 0.0)
        for what, values in figures.items()
    }
    finish("trading", figures, targets)


def _lead(values: Mapping[str, float]) -> float | None:
    others = [value for name, value in values.items() if name not in (OURS, ENSEMBLE)]
    return values[OURS] - max(others) if OURS in values and others else None


def _print_season(season: Season, found: Returns, seconds: float) -> None:
    rows = []
    for name, returns in found.items():
        falls = [
            largest_drawdown(np.concatenate([[1.0], np.cumprod(1 + each)])).depth
            for each in returns
        ]
        rows.append(
            [
                name,
                *map(_shown, (100 * growth(returns), sharpe_ratio(returns), 100 * np.array(falls))),
            ]
        )
    seeds = max(len(returns) for returns in found.values())
    title = (
        f"Test year {season.title}: {seconds:g} s of training, {seeds} seed(s), median (least "
        "– greatest)"
    )
    print_table(title, ["method", "return, %", "Sharpe", "largest fall, %"], rows)
    _print_distances(found)


def _print_distances(found: Returns) -> None:
    """How far ours are above each other method in the seeds' means, and how sure that is."""
    ours = [name for name in (OURS, ENSEMBLE) if name in found]
    rows = []
    for name in (name for name in found if name not in ours):
        distances = []
        for mine in ours:
            distances.append(_distance(above(found[mine], found[name], sharpe_ratio)))
            distances.append(_distance(above(100 * found[mine], 100 * found[name], yearly_mean)))
        rows.append([name, *distances])
    header = [text for mine in ours for text in (f"{mine}: Sharpe", f"{mine}: yearly mean, %")]
    if ours and rows:
        print_table("Above them by (95 % interval, paired over days)", ["method", *header], rows)


def _print_walks(found: Mapping[Season, Returns]) -> None:
    """All test years of one kind of prices, one after the other, as one account."""
    for adjust in dict.fromkeys(season.adjust for season in found):
        years = sorted(
            (season for season in found if season.adjust == adjust), key=lambda season: season.year
        )
        if len(years) < 2:
            continue
        rows = []
        for name in found[years[0]]:
            together = np.concatenate([found[season][name] for season in years], axis=1)
            rows.append([name, _shown(100 * growth(together)), _shown(sharpe_ratio(together))])
        kind = years[0].title.partition(", ")[2]
        print_table(
            f"Walk forward over {', '.join(str(season.year) for season in years)}, {kind}: median "
            "(least – greatest)",
            ["method", "return, %", "Sharpe"],
            rows,
        )


def _shown(values: Sequence[float] | Array) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.2f}" if len(values) == 1 else f"{middle:.2f} ({least:.2f} – {most:.2f})"


def _distance(found: tuple[float, float, float]) -> str:
    difference, lower, upper = found
    return f"{difference:+.2f} ({lower:+.2f} to {upper:+.2f})"


def draw(found: Returns, season: Season, path: Path) -> None:
    """Everybody's account in the test year as a picture: the median over seeds, day by day."""
    figure, (axes,) = panels(width=10, height=5)
    for name, returns in found.items():
        curves = 100 * np.cumprod(1 + returns, axis=1)
        values = np.concatenate([[100.0], np.median(curves, axis=0)])
        axes.plot(values, label=name, linewidth=2.4 if name == OURS else 1.2)
    axes.set_xlabel(f"trading days of {season.title}")
    axes.set_ylabel("account, % of its start; median over seeds")
    axes.legend(frameon=False)
    figure.savefig(path)
