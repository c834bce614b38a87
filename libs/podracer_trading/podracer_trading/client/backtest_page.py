"""The page of a back-test, one file without external resources, and the CSV files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from podracer_client.files import make_folder, write_whole
from podracer_client.report import Markup, definitions, element, join, page, section, table
from podracer_client.report.figures import (
    FigurePlan,
    Rendered,
    figure_element,
    render_figures,
    write_figures,
)
from podracer_trading.backtest import drawdowns, equity_csv, holdings_csv, monthly_returns
from podracer_trading.client.backtest_figures import backtest_figures
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
from podracer_trading.client.backtests import Account, Backtest

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
            _header(found, title),
            _warning(found),
            _tiles(found),
            section("Windows", _windows(found)),
            section("Results", _results(found), figure["equity"], figure["drawdown"]),
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


def _header(found: Backtest, title: str) -> Markup:
    words = f"{who_text(found)} · {period_text(found)}"
    return element("header", join((element("h1", title), element("p", words, class_="muted"))))


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
    tiles = (
        element(
            "div",
            join((element("span", name), element("strong", value), element("span", note))),
            class_="tile",
        )
        for value, name, note in shown
    )
    return element("div", join(tiles), class_="tiles")


def _windows(found: Backtest) -> Markup:
    if not found.windows:
        return Markup()
    caption = (
        "Where one policy follows another, what was held is closed at that bar's closing "
        "price, without costs."
    )
    return table(
        WINDOWS,
        [window_cells(window) for window in found.windows],
        right=WINDOWS[4:],
        caption=caption,
    )


def _results(found: Backtest) -> Markup:
    return table(COLUMNS, [account_cells(account) for account in found.accounts], right=COLUMNS[1:])


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
        np.datetime64(moment, "us").astype("datetime64[D]") for moment in _training(found)
    )
    yield "trained on", f"{first} to {last}"
    for name, value in sorted(environment.items()):
        yield name, str(value)
    yield "table", found.header.preparation


def _training(found: Backtest) -> tuple[int, int]:
    return found.header.train_start_us, found.header.train_end_us
