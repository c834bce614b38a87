"""A back-test as a table, and as one JSON object."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from podracer_client.display import columns
from podracer_client.names import short_name
from podracer_trading.backtest import Edge
from podracer_trading.client.session import Account, Backtest

_ROWS = (
    ("cumulative_return", "return", "percent"),
    ("annual_return", "a year", "percent"),
    ("annual_volatility", "volatility", "percent"),
    ("sharpe_ratio", "Sharpe", "number"),
    ("sortino_ratio", "Sortino", "number"),
    ("calmar_ratio", "Calmar", "number"),
    ("max_drawdown", "drawdown", "percent"),
)
COLUMNS = ("account", *(title for _, title, _ in _ROWS), "turnover", "costs")
WINDOWS = ("policy", "trained until", "from", "to", "return", "Sharpe", "drawdown")
_TITLES = {
    "policy": "policy",
    "buy_and_hold": "buy and hold",
    "equal_weight_daily": "equal weight, daily",
    "equal_weight_monthly": "equal weight, monthly",
    "cash": "cash",
    "index": "index",
}


def title_of(account: str) -> str:
    """The display name of an account."""
    return _TITLES.get(account, account)


def percent(value: float) -> str:
    """`12.3 %`, with a real minus."""
    return f"{100 * value:.1f} %".replace("-", "−")


def ratio(value: float) -> str:
    """`1.23`; `–` if there is none."""
    return "–" if math.isnan(value) else f"{value:.2f}".replace("-", "−")


def account_cells(account: Account) -> tuple[str, ...]:
    """A row of the table whose titles are `COLUMNS`."""
    shown = {"percent": percent, "number": ratio}
    figures = [shown[kind](getattr(account.performance, name)) for name, _, kind in _ROWS]
    record = account.record
    traded = (
        (f"{record.turnover:.1f}", f"{record.costs_paid:,.0f}") if record.tickers else ("–", "–")
    )
    return (title_of(account.name), *figures, *traded)


def difference_text(found: Backtest, other: Account) -> str:
    """The difference of the policy's Sharpe ratio to that of another account, with its interval."""
    difference, lower, upper = found.policy.sharpe_above(other)
    return f"{ratio(difference)} ({ratio(lower)} to {ratio(upper)})"


def period_text(found: Backtest) -> str:
    """`2019-01-02 to 2019-12-31, 244 days, 30 tickers`."""
    times = found.policy.record.times
    days = times.astype("datetime64[D]")
    return (
        f"{days[0]} to {days[-1]}, {len(set(days.tolist()))} days, {len(found.header.tickers)} "
        "tickers"
    )


def backtest_text(found: Backtest) -> str:
    """The back-test as text."""
    lower, upper = found.policy.sharpe_interval
    lines = [f"policy      {who_text(found)}", f"period      {period_text(found)}"]
    if found.windows:
        windows = columns(WINDOWS, list(map(window_cells, found.windows)), right=WINDOWS[4:])
        lines += ["", windows]
    if seen := seen_text(found):
        lines.append(f"beware      {seen}")
    lines += [
        "",
        columns(COLUMNS, list(map(account_cells, found.accounts)), right=COLUMNS[1:]),
        "",
        f"Sharpe      {ratio(found.policy.performance.sharpe_ratio)}, 95 % interval {ratio(lower)} "
        f"to {ratio(upper)}",
    ]
    lines += [
        f"            {difference_text(found, other)} above {title_of(other.name)}"
        for other in found.accounts[1:]
    ]
    if found.validation:
        lines.append(f"validation  {validation_text(found.validation)}")
    return "\n".join(lines) + "\n"


def validation_text(edge: Edge | str) -> str:
    """The verdict of the days by which a job chose its best."""
    if isinstance(edge, str):
        return edge
    count = round(edge.independent_trials)
    best = f"the best of about {count:,} independent trials" if count > 1 else "a single trial"
    chance = "p < 0.001" if edge.p_value < 0.001 else f"p = {edge.p_value:.2g}"
    return (
        f"excess over holding, Sharpe ratio {ratio(edge.excess_sharpe_ratio)}; {best} without an "
        f"edge has {ratio(edge.luck_sharpe_ratio)}: {'an' if edge.is_there else 'no'} edge over "
        f"holding ({chance})"
    )


def who_text(found: Backtest) -> str:
    """The owner of the account."""
    if found.windows:
        return f"{len(found.windows)} policies, one after the other"
    description = found.header.description
    who = f"{short_name(description.agent)} ({description.algorithm})"
    return (
        f"several together by {found.header.ensemble}, the first of them {who}"
        if found.header.ensemble
        else who
    )


def window_cells(window: Backtest) -> tuple[str, ...]:
    """A row of the table whose titles are `WINDOWS`."""
    times = window.policy.record.times.astype("datetime64[D]")
    until = str(np.datetime64(window.header.train_end_us, "us").astype("datetime64[D]"))
    figures = window.policy.performance
    whole = (
        percent(figures.cumulative_return),
        ratio(figures.sharpe_ratio),
        percent(figures.max_drawdown),
    )
    return (who_text(window), until, str(times[0]), str(times[-1]), *whole)


def seen_text(found: Backtest) -> str:
    """A note that the policy was trained on the days or selected by them; empty if neither."""
    counts = (("trained on", found.trained_bars), ("selected by", found.selected_bars))
    words = " and ".join(f"{how} {count}" for how, count in counts if count)
    bars = len(found.policy.record.times)
    return (
        f"the policy was {words} of these {bars} bars: its result on them is no forecast"
        if words
        else ""
    )


def backtest_json(found: Backtest) -> dict[str, Any]:
    """Statistics by account; unknown ones are missing."""
    accounts = {}
    for account in found.accounts:
        figures: dict[str, Any] = account.performance.known()
        figures["sharpe_interval"] = list(account.sharpe_interval)
        figures |= {"turnover": account.record.turnover, "costs_paid": account.record.costs_paid}
        if account is not found.policy:
            difference, *interval = found.policy.sharpe_above(account)
            figures |= {"policy_sharpe_above": difference, "policy_sharpe_above_interval": interval}
        accounts[account.name] = figures
    times = found.policy.record.times
    return {
        "agent": found.header.description.agent,
        "ensemble": found.header.ensemble or None,
        "from": str(times[0]),
        "to": str(times[-1]),
        "bars": len(times),
        "trained_bars": found.trained_bars,
        "selected_bars": found.selected_bars,
        "tickers": list(found.header.tickers),
        "accounts": accounts,
        "validation": {**asdict(edge), "edge": edge.is_there}
        if isinstance(edge := found.validation, Edge)
        else None,
        "windows": [
            {
                "agent": each.header.description.agent,
                "from": str(each.policy.record.times[0]),
                "to": str(each.policy.record.times[-1]),
                **each.policy.performance.known(),
            }
            for each in found.windows
        ],
    }
