"""The figures of a back-test: value, drawdown, and holdings."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from podracer_client.report import GRID, MUTED, SERIES
from podracer_client.report.figures import WIDTH_IN, FigurePlan, legend, tidy
from podracer_trading.client.backtest_words import title_of
from podracer_trading.client.backtests import Backtest

_MOST_HELD = len(SERIES) - 1
_POINTS = 4000
_WIDE = 2.5  # between the greatest and the least value: then equal steps are equal returns


def backtest_figures(found: Backtest) -> tuple[FigurePlan, ...]:
    """The figures, not drawn yet."""
    against = ", ".join(
        title_of(account.name) for account in found.accounts[1:] if account.record.tickers
    )
    return (
        FigurePlan(
            "equity",
            "Value of the accounts",
            "Closing values, from 100 % on."
            + (f" Beside the policy, at the same costs: {against}." if against else ""),
            partial(_draw_equity, found),
        ),
        FigurePlan(
            "drawdown",
            "Falls from the peak",
            "The policy's is filled.",
            partial(_draw_drawdown, found),
        ),
        FigurePlan(
            "holdings",
            "What the account was in",
            f"Parts of the account at closing prices: the {_MOST_HELD} most held, all others "
            "together, and cash.",
            partial(_draw_holdings, found),
        ),
    )


def _draw_equity(found: Backtest) -> Figure:
    """The value of every account, the first being 100 %."""
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    axes = figure.subplots()
    colors = _colors(found)
    kept = _thinned(len(found.policy.record.times))
    span = [math.inf, 0.0]
    for account in reversed(found.accounts):
        growth = account.record.value / account.record.value[0]
        span = [min(span[0], growth.min()), max(span[1], growth.max())]
        first = account is found.policy
        axes.plot(
            account.record.times[kept],
            growth[kept],
            color=colors[title_of(account.name)],
            linewidth=2.2 if first else 1.3,
            zorder=3 if first else 2,
        )
    axes.axhline(1.0, color=MUTED, linewidth=0.8)
    if span[1] > _WIDE * span[0]:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    _percent(axes)
    tidy(axes, x="", y="value of the account")
    _dates(axes)
    legend(axes, colors)
    return figure


def _draw_drawdown(found: Backtest) -> Figure:
    """How far the policy's account lies below its peak, and the others' as lines."""
    figure = Figure(figsize=(WIDTH_IN, 2.6), layout="constrained")
    axes = figure.subplots()
    colors = _colors(found)
    kept = _thinned(len(found.policy.record.times))
    for account in reversed(found.accounts):
        value = account.record.value
        fall = (value / np.maximum.accumulate(value) - 1)[kept]
        color = colors[title_of(account.name)]
        axes.plot(account.record.times[kept], fall, color=color, linewidth=1.2)
        if account is found.policy:
            axes.fill_between(
                account.record.times[kept], fall, 0.0, color=color, alpha=0.25, linewidth=0
            )
    _percent(axes)
    tidy(axes, x="", y="below the highest value so far")
    _dates(axes)
    return figure


def _draw_holdings(found: Backtest) -> Figure:
    """The contents of the policy's account: its largest holdings, all others, cash."""
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axes = figure.subplots()
    parts = weights(found)
    kept = _thinned(len(found.policy.record.times))
    shown = {name: part[kept] for name, part in parts.items()}
    colors = dict(zip(shown, (*SERIES[: len(shown) - 2], MUTED, GRID), strict=True))
    axes.stackplot(
        found.policy.record.times[kept], *shown.values(), colors=list(colors.values()), linewidth=0
    )
    axes.set_ylim(0.0, 1.0)
    _percent(axes)
    tidy(axes, x="")
    _dates(axes)
    legend(axes, colors)
    return figure


def weights(found: Backtest) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Shares of the account [T] by holding: the largest tickers, the others together, cash."""
    record = found.policy.record
    parts = record.shares * record.close / record.value[:, None]
    most = np.argsort(-parts.mean(0), kind="stable")[:_MOST_HELD]
    held = {record.tickers[place]: parts[:, place] for place in most}
    others = parts.sum(1) - sum(held.values())
    return held | {"others": np.clip(others, 0.0, None), "cash": record.cash / record.value}


def _colors(found: Backtest) -> dict[str, str]:
    return {
        title_of(account.name): color
        for account, color in zip(found.accounts, SERIES, strict=False)
    }


def _thinned(bars: int) -> slice:
    """A slice that leaves about as many bars as a figure can show."""
    return slice(None, None, max(1, bars // _POINTS))


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:.0f} %".replace("-", "−"))
    )


def _dates(axes: Axes) -> None:
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.margins(x=0.01)
