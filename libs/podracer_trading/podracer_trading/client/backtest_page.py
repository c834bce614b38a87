"""The page of a back-test, one file without external resources, its figures (value, drawdown,
holdings), and the CSV files beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from podracer_client.files import make_folder, write_whole
from podracer_client.report import (
    GRID,
    MUTED,
    SERIES,
    Markup,
    definitions,
    element,
    header,
    join,
    page,
    section,
    table,
    tiles,
)
from podracer_client.report.figures import (
    WIDTH_IN,
    FigurePlan,
    Rendered,
    figure_element,
    legend,
    render_figures,
    tidy,
    write_figures,
)
from podracer_trading.backtest import drawdowns, equity_csv, holdings_csv, monthly_returns
from podracer_trading.client.backtest_words import (
    COLUMNS,
    WINDOWS,
    account_cells,
    difference_text,
    percent,
    period_text,
    ratio,
    seen_text,
    title_of,
    validation_text,
    who_text,
    window_cells,
)
from podracer_trading.client.session import Account, Backtest

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


PAGE = "index.html"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FALLS = 5


def write_backtest(
    found: Backtest, folder: Path, title: str, figures: Path | None = None
) -> list[Path]:
    """The page, and the policy's account in CSV files; returns their paths. Every figure goes into
    the folder `figures` too, as SVG and PNG. Raises InvalidInput if a file cannot be written."""
    make_folder(folder)
    record = found.policy.record
    files = {
        "equity.csv": equity_csv(record),
        "trades.csv": found.trades,
        "holdings.csv": holdings_csv(record),
    }
    for name, text in files.items():
        write_whole(folder / name, text.encode())
    plans = backtest_figures(found)
    rendered = render_figures(plans, png=figures is not None)
    write_whole(folder / PAGE, backtest_page(found, title, plans, rendered).encode())
    if figures is not None:
        write_figures(figures, rendered.values())
    return [folder / PAGE, *(folder / name for name in files)]


def backtest_page(
    found: Backtest, title: str, plans: Iterable[FigurePlan], rendered: Mapping[str, Rendered]
) -> str:
    """The document; `rendered` are the figures by name."""
    figure = {plan.name: figure_element(plan, rendered.get(plan.name)) for plan in plans}
    return page(
        title,
        (
            header(title, f"{who_text(found)} · {period_text(found)}"),
            _warning(found),
            _tiles(found),
            section("Windows", _windows(found)),
            section(
                "Results",
                table(COLUMNS, map(account_cells, found.accounts), right=COLUMNS[1:]),
                figure["equity"],
                figure["drawdown"],
            ),
            section("Against each", _against(found)),
            section("Validation", _validation(found)),
            section("Months", _months(found.policy)),
            section("Worst falls", _falls(found.policy)),
            section("Holdings", figure["holdings"], _holdings(found)),
            section("Trading", _trading(found)),
            section("What is simulated, and what is not", *_statement(found)),
            section("How it was made", definitions(_making(found))),
        ),
    )


def _warning(found: Backtest) -> Markup:
    text = seen_text(found)
    if not text:
        return Markup()
    return element("div", element("strong", f"{text[0].upper()}{text[1:]}."), class_="problem")


def _tiles(found: Backtest) -> Markup:
    figures = found.policy.performance
    lower, upper = found.policy.sharpe_interval
    shown = (
        (percent(figures.cumulative_return), "return", f"{percent(figures.annual_return)} a year"),
        (ratio(figures.sharpe_ratio), "Sharpe ratio", f"95 %: {ratio(lower)} to {ratio(upper)}"),
        (percent(figures.max_drawdown), "largest fall", f"Calmar {ratio(figures.calmar_ratio)}"),
        (percent(figures.annual_volatility), "volatility", "of daily returns, a year"),
        (
            f"{found.policy.record.costs_paid:,.0f}",
            "costs",
            f"{found.policy.record.turnover:.1f} × turned over",
        ),
    )
    return tiles(
        (element("span", name), element("strong", value), element("span", note))
        for value, name, note in shown
    )


def _windows(found: Backtest) -> Markup:
    if not found.windows:
        return Markup()
    caption = (
        "Where one policy follows another, what was held is closed at that bar's closing "
        "price, without costs."
    )
    return table(
        WINDOWS,
        map(window_cells, found.windows),
        right=WINDOWS[4:],
        caption=caption,
    )


def _against(found: Backtest) -> Markup:
    if len(found.accounts) < 2:
        return Markup()
    rows = []
    for other in found.accounts[1:]:
        more = found.policy.performance.cumulative_return - other.performance.cumulative_return
        better = (found.policy.returns > other.returns).mean()
        rows.append(
            (
                title_of(other.name),
                percent(more),
                difference_text(found, other),
                percent(float(better)),
            )
        )
    titles = ("account", "return above it", "Sharpe above it (95 % interval)", "better days")
    caption = (
        "Intervals by a stationary bootstrap of the days, the same days of both: one that "
        "spans 0 tells no winner."
    )
    return table(titles, rows, right=titles[1:], caption=caption)


def _validation(found: Backtest) -> Markup:
    text = validation_text(found.validation)
    return (
        element("p", f"On the days by which the job chose its best: {text}.") if text else Markup()
    )


def _months(account: Account) -> Markup:
    found = monthly_returns(account.record.times, account.record.value)
    years = sorted({year for year, _ in found})
    rows = []
    for year in years:
        cells = [found.get((year, month)) for month in range(1, 13)]
        whole = float(np.prod([1 + each for each in cells if each is not None]) - 1)
        rows.append(
            (str(year), *("" if each is None else percent(each) for each in cells), percent(whole))
        )
    titles = ("year", *_MONTHS, "all")
    return table(titles, rows, right=titles[1:])


def _falls(account: Account) -> Markup:
    record = account.record
    days = record.times.astype("datetime64[D]")
    rows = []
    for fall in drawdowns(record.value)[:_FALLS]:
        back = "not yet" if fall.recovery is None else str(days[fall.recovery])
        long = days[-1 if fall.recovery is None else fall.recovery] - days[fall.peak]
        rows.append(
            (
                percent(fall.depth),
                str(days[fall.peak]),
                str(days[fall.trough]),
                back,
                f"{long.astype(int)}",
            )
        )
    if not rows:
        return element("p", "The account never fell.", class_="muted")
    titles = ("fall", "from", "lowest on", "made good", "calendar days")
    return table(titles, rows, right=("fall", "calendar days"))


def _holdings(found: Backtest) -> Markup:
    record = found.policy.record
    worth = record.shares[-1] * record.close[-1]
    most = [place for place in np.argsort(-worth, kind="stable") if worth[place] > 0]
    rows = [
        (
            record.tickers[place],
            f"{record.shares[-1, place]:,.0f}",
            f"{worth[place]:,.0f}",
            percent(worth[place] / record.value[-1]),
        )
        for place in most
    ]
    rows.append(
        ("cash", "", f"{record.cash[-1]:,.0f}", percent(record.cash[-1] / record.value[-1]))
    )
    titles = ("at the end", "shares", "worth", "part")
    held = table(titles, rows, right=titles[1:])
    return element("details", join((element("summary", f"{len(most)} stocks at the end"), held)))


def _trading(found: Backtest) -> Markup:
    record = found.policy.record
    traded = record.traded != 0
    money = np.abs(record.traded) * record.price
    cut = (np.abs(np.trunc(record.orders)) > np.abs(record.traded) + 0.5) & (record.orders != 0)
    years = max(1, len(found.policy.returns)) / 252
    return definitions(
        (
            (
                "fills",
                f"{int(traded.sum()):,}, on {percent(float(traded.any(1).mean()))} of the bars",
            ),
            (
                "traded",
                f"{money.sum():,.0f}: {record.turnover:.1f} × the account, "
                f"{record.turnover / years:.1f} × a year",
            ),
            (
                "costs",
                f"{record.costs_paid:,.0f}, {percent(record.costs_paid / record.value[0])} of what "
                "it began with",
            ),
            ("orders cut", f"{int(cut.sum()):,}, by what cash and holdings allowed"),
        )
    )


def _statement(found: Backtest) -> Iterator[Markup]:
    kwargs: dict[str, Any] = {
        "fill": "next_open",
        "buy_cost": 0.001,
        "sell_cost": 0.001,
        "adjust": "auto",
        "minimum_trade": 1,
    }
    kwargs |= {name: value for name, value in found.environment.kwargs.items() if name in kwargs}
    when = (
        "at the next bar's open"
        if kwargs["fill"] == "next_open"
        else "at the close of the bar that was decided on"
    )
    adjusted = (
        "smoothed at ex-rights dates" if kwargs["adjust"] == "auto" else "as the table has them"
    )
    yield element(
        "p",
        f"Simulated: a decision on each bar, filled {when}, in whole shares, "
        f"{100 * kwargs['buy_cost']:g} % of what is bought and {100 * kwargs['sell_cost']:g} % of "
        "what is sold as costs; sales first, purchases cut alike where the cash does not reach; no "
        "credit, nothing sold short; stocks without a bar or without volume are not traded; no "
        f"order below {kwargs['minimum_trade']} "
        f"{'share' if kwargs['minimum_trade'] == 1 else 'shares'}. Prices are {adjusted}.",
    )
    yield element(
        "p",
        "Not simulated: slippage and market impact; daily price limits, at which no trade is "
        "possible; lots; dividends beyond what adjusted prices hold; interest on cash; taxes; "
        "stocks that were listed or delisted and are not in the table.",
    )


def _making(found: Backtest) -> Iterable[tuple[str, str]]:
    environment: Mapping[str, object] = found.environment.kwargs
    yield (
        "policy",
        f"{found.header.description.agent}, {found.header.description.env_steps:,} environment "
        "steps",
    )
    first, last = (
        np.datetime64(moment, "us").astype("datetime64[D]")
        for moment in (found.header.train_start_us, found.header.train_end_us)
    )
    yield "trained on", f"{first} to {last}"
    for name, value in sorted(environment.items()):
        yield name, str(value)
    yield "table", found.header.preparation
