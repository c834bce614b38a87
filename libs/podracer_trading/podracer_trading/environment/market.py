"""Preparation of a price table, from its file to tensors on the device: everything that is done
once.

Train, validation and test are three stretches of time, one after the other. Technical indicators
of each ticker, through TA-Lib, use the bars up to their own alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podracer_trading.environment.shared_arrays import Room, shared_arrays
from podracer_trading.info import Indicator, Split, StockTradingConfig
from podracer_trading.market_data import (
    AlignedBars,
    ExRightsDate,
    PriceTable,
    adjusted,
    align,
    checked,
    find_ex_rights,
    kept_times,
    moment,
    read_table,
    refusal,
    trading_library,
)

_DATE = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d)?)?)?)?")


def split_bars(
    times: NDArray[np.datetime64], first: int, config: StockTradingConfig
) -> Mapping[Split, range]:
    """The bars of each split; those before `first` belong to none.

    Raises InvalidInput for a text that is no date, dates in the wrong order, and a training split
    without two bars."""
    train_end, validation_end = _ends(times, first, config)
    bars: Mapping[Split, range] = {
        "train": range(first, train_end),
        "validation": range(train_end, validation_end),
        "test": range(validation_end, len(times)),
        "all": range(first, len(times)),
    }
    check_split(bars, "train", times, config)
    return bars


def traded_splits(config: StockTradingConfig) -> tuple[Split, Split]:
    """The splits that training and evaluation trade. If validation ends where training does, it is
    empty: evaluation then trades the training bars."""
    if config.train_end is None:
        has_validation = config.validation_fraction > 0
    else:
        last = config.validation_end
        has_validation = last is None or _end_of("validation_end", last) != _end_of(
            "train_end", config.train_end
        )
    default: Split = "validation" if config.split == "train" and has_validation else config.split
    return config.split, config.evaluation_split or default


def check_split(
    bars: Mapping[Split, range],
    split: Split,
    times: NDArray[np.datetime64],
    config: StockTradingConfig,
) -> range:
    """The bars of `split`. Raises InvalidInput where it has no two, as one step needs."""
    if len(bars[split]) >= 2:
        return bars[split]
    usable = times[bars["all"].start :]
    there = (
        f"usable bars run from {moment(usable[0])} to {moment(usable[-1])}"
        if len(usable)
        else "no bar is usable"
    )
    if config.train_end is None:
        to_blame = "validation_fraction" if split == "validation" else "train_fraction"
    else:
        to_blame = (
            "validation_end"
            if split == "test" and config.validation_end is not None
            else "train_end"
        )
    message = f"the {split} split has {len(bars[split])} bars and needs two at least: {there}"
    raise refusal(to_blame, f"{message} (indicators need {bars['all'].start} bars before)")


def evaluation_bars(
    bars: Mapping[Split, range],
    split: Split,
    times: NDArray[np.datetime64],
    config: StockTradingConfig,
) -> range:
    """The bars that an evaluation trades: those of `split`, or from `evaluation_start` to
    `evaluation_end`, of which one that is unset is the split's own. Raises InvalidInput for dates
    between which no two usable bars lie."""
    if config.evaluation_start is None and config.evaluation_end is None:
        return check_split(bars, split, times, config)
    usable, start, stop = bars["all"], bars[split].start, bars[split].stop
    there = "the table has no usable bar"
    if usable:
        there = f"usable bars run from {moment(times[usable[0]])} to {moment(times[usable[-1]])}"
    if config.evaluation_start is not None:
        first = _named("evaluation_start", config.evaluation_start).astype("datetime64[us]")
        start = max(usable.start, int(np.searchsorted(times, first)))
        if not usable or first > times[usable[-1]]:
            raise refusal(
                "evaluation_start", f"evaluation_start is {config.evaluation_start}: {there}"
            )
    if config.evaluation_end is not None:
        after = _end_of("evaluation_end", config.evaluation_end)
        stop = min(usable.stop, int(np.searchsorted(times, after)))
        if not usable or after <= times[usable[0]]:
            raise refusal("evaluation_end", f"evaluation_end is {config.evaluation_end}: {there}")
    if stop - start < 2:
        name = "evaluation_end" if config.evaluation_end is not None else "evaluation_start"
        stretch = (
            f"from {config.evaluation_start or f'the {split} split'} to "
            f"{config.evaluation_end or 'its end'}"
        )
        raise refusal(
            name,
            f"{stretch} there are {max(0, stop - start)} bars, and two are needed at least: "
            f"{there}",
        )
    return range(start, stop)


def _ends(times: NDArray[np.datetime64], first: int, config: StockTradingConfig) -> tuple[int, int]:
    """The first bars of validation and of test."""
    if config.train_end is None:
        count = len(times) - first
        ends = [
            round(count * config.train_fraction),
            round(count * (config.train_fraction + config.validation_fraction)),
        ]
        return first + ends[0], first + ends[1]
    train_end = _end_of("train_end", config.train_end)
    if config.validation_end is None:
        return max(first, int(np.searchsorted(times, train_end))), len(times)
    validation_end = _end_of("validation_end", config.validation_end)
    if validation_end < train_end:
        message = (
            f"is {config.validation_end}, before train_end ({config.train_end}): validation "
            "follows training"
        )
        raise refusal("validation_end", f"validation_end {message}")
    after = np.searchsorted(times, np.array([train_end, validation_end]))
    return max(first, int(after[0])), max(first, int(after[1]))


def _end_of(name: str, text: str) -> np.datetime64:
    """The first moment after the whole of what the text names: its year, month, day, or minute."""
    after: np.datetime64 = (_named(name, text) + 1).astype("datetime64[us]")
    return after


def _named(name: str, text: str) -> np.datetime64:
    """The year, month, day or minute. Raises InvalidInput where it is none."""
    try:
        # NumPy also takes "today", zones that it then does not heed, and years of eight digits.
        named = np.datetime64(text) if _DATE.fullmatch(text) else np.datetime64("NaT")
    except ValueError:  # the 30th of February
        named = np.datetime64("NaT")
    if np.isnat(named):
        raise refusal(
            name, f"{name} is {text!r}; a date such as 2018-12-31, or 2018-12-31 09:30 is expected"
        )
    return named


_MACD = (12, 26, 9)  # fast, slow and signal windows: everyone's

Series = NDArray[np.float64]


def names_of(config: StockTradingConfig) -> tuple[Indicator, ...]:
    """The indicators of `config` that exist for each ticker: all but turbulence, which is one of
    the whole market."""
    return tuple(name for name in config.indicators if name != "turbulence")


def bars_needed(config: StockTradingConfig) -> int:
    """Bars of a ticker until all its indicators are known; those before the last of these bars have
    none yet."""
    _, slow, signal = _MACD
    needed = {
        "macd": slow + signal - 1,
        "rsi": config.rsi_window + 1,
        "cci": config.cci_window,
        "adx": 2 * config.adx_window,
        "bollinger": config.bollinger_window,
    }
    return max((needed[name] for name in names_of(config)), default=1)


def refuse_short(table: PriceTable, config: StockTradingConfig) -> None:
    """Raise InvalidInput for a ticker with too few bars for its indicators."""
    needed = bars_needed(config)
    for ticker, name in enumerate(table.tickers):
        rows = table.rows(ticker)
        if rows.stop - rows.start < needed:
            message = (
                f"{name} has {rows.stop - rows.start} bars; its indicators need {needed} at least"
            )
            raise refusal("table", f"{message}: leave it out, or choose shorter windows")


def indicators_of(table: PriceTable, config: StockTradingConfig) -> NDArray[np.float64]:
    """[R, I], NaN on bars before all of a ticker's are known. Raises InvalidInput as
    `refuse_short`.

    macd        MACD line of the close as a fraction of the close
    rsi, adx    0 … 100
    cci         TA-Lib's
    bollinger   where the close lies between the lower (0) and the upper (1) band of two standard
                deviations
    """
    refuse_short(table, config)
    names, needed = names_of(config), bars_needed(config)
    values = np.full((len(table.time), len(names)), np.nan)
    for ticker in range(len(table.tickers)):
        rows = table.rows(ticker)
        high, low, close = (np.ascontiguousarray(column) for column in table.prices[rows, 1:].T)
        for column, indicator in enumerate(names):
            values[rows, column] = _series(indicator, high, low, close, config)
        values[rows.start : rows.start + needed - 1] = np.nan
    return values


def _series(
    indicator: Indicator, high: Series, low: Series, close: Series, config: StockTradingConfig
) -> Series:
    talib = trading_library("talib")
    match indicator:
        case "macd":
            found = talib.MACD(close, *_MACD)[0] / close
        case "rsi":
            found = talib.RSI(close, config.rsi_window)
        case "cci":
            found = talib.CCI(high, low, close, config.cci_window)
        case "adx":
            found = talib.ADX(high, low, close, config.adx_window)
        case _:
            upper, _, lower = talib.BBANDS(close, config.bollinger_window, 2.0, 2.0)
            width = upper - lower
            found = np.where(
                width > 0, (close - lower) / np.where(width > 0, width, 1.0), 0.5 + 0 * width
            )
    return np.asarray(found, dtype=np.float64)


# How unusual a day is for the whole market.
#
# Kritzman and Li 2010, "Skulls, Financial Turbulence, and Risk Management", eq. 1: the squared
# Mahalanobis distance of the day's returns from those of a trailing window. About K where days are
# normal and the window much longer than K.

_BLOCK_NUMBERS = 1 << 22  # of the windows or of the covariances that are worked on at a time


def turbulence_of(
    close: NDArray[np.float64], traded: NDArray[np.bool_], window: int
) -> NDArray[np.float64]:
    """[T] from closes [T, K] (0 before a ticker's first bar), NaN where fewer than `window` returns
    came before.

    On each bar those tickers count that traded on it and on half of the window's bars.
    """
    bars, tickers = close.shape
    first = window + 1  # the first bar has no return
    turbulence = np.full(bars, np.nan)
    if bars <= first:
        return turbulence
    returns = np.zeros((bars, tickers))
    is_known = close[:-1] > 0
    np.divide(close[1:], close[:-1], out=returns[1:], where=is_known)
    returns[1:] -= is_known
    bars_traded = np.lib.stride_tricks.sliding_window_view(traded[1:-1], window, axis=0).sum(axis=2)
    counts = traded[first:] & (2 * bars_traded >= window)
    # [T - first, K, window]
    trailing = np.lib.stride_tricks.sliding_window_view(returns[1:-1], window, axis=0)
    numbers = (bars - first) * tickers * max(tickers, window)
    for block in np.array_split(np.arange(bars - first), -(-numbers // _BLOCK_NUMBERS)):
        mean = trailing[block].mean(axis=2)
        centered = (trailing[block] - mean[:, :, None]) * counts[block][:, :, None]
        covariance = centered @ centered.transpose(0, 2, 1) / (window - 1)
        distance = (returns[first + block] - mean) * counts[block]
        # The pseudoinverse leaves out the tickers that do not count, and whatever else has no
        # variance.
        inverse = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
        turbulence[first + block] = np.einsum("ti,tij,tj->t", distance, inverse, distance)
    return turbulence


# Relative. A deviation below it is the rounding of something that stands still; to divide by it
# would make noise of it.
_STANDS_STILL = 1e-6
_DATES_SHOWN = 50  # in a report, ex-rights dates


@dataclass(frozen=True, slots=True)
class PreparationReport:
    """Report of the changes to the table; its `str` is for readers.

    ex_rights       dates that were smoothed
    filled_bars     bars that tickers lacked, filled with their last close and not traded
    bars_of_no_volume  rows of the table that cannot be traded
    dropped_times   of bars that were left out
    """

    table: str
    tickers: tuple[str, ...]
    times: NDArray[np.datetime64]
    splits: Mapping[Split, range]
    ex_rights: tuple[ExRightsDate, ...]
    filled_bars: int
    bars_of_no_volume: int
    dropped_times: NDArray[np.datetime64]

    def __str__(self) -> str:
        stretch = f"{len(self.times)} bars {self._stretch(range(len(self.times)))}"
        told = [f"{self.table}: {len(self.tickers)} tickers, {stretch}"]
        for name in ("train", "validation", "test"):
            bars = self.splits[name]
            told.append(
                f"{name} {self._stretch(bars)} ({len(bars)} bars)" if bars else f"no {name} bars"
            )
        if self.ex_rights:
            shown = [*map(str, self.ex_rights[:_DATES_SHOWN])]
            more = len(self.ex_rights) - len(shown)
            shown += [f"and {more} more"] if more else []
            told.append(f"{len(self.ex_rights)} ex-rights dates smoothed: {', '.join(shown)}")
        if self.filled_bars:
            told.append(f"{self.filled_bars} missing bars filled and not traded")
        if self.bars_of_no_volume:
            told.append(f"{self.bars_of_no_volume} bars of no volume not traded")
        if len(self.dropped_times):
            told.append(f"{len(self.dropped_times)} bars dropped for all tickers")
        return "; ".join(told)

    def _stretch(self, bars: range) -> str:
        return f"from {moment(self.times[bars[0]])} to {moment(self.times[bars[-1]])}"


@dataclass(frozen=True, slots=True)
class Market:
    """T bars of K stocks. All tensors are on the device; none is written.

    tickers      [K]
    times        [T] datetime64[us]
    splits       the bars of each split; those of none are the indicators' first ones
    observed     [T, F·K (+ 1)] float32: close and each indicator of all stocks, then turbulence
                 where it is an indicator; standardized with the training split's mean and
                 deviation of each stock; 0 before a stock's are known
    turbulence   [T] float64, 0 before it is known; None if the configuration does not use it
    quoted       [2, T + 1, K] float64: open and close, 0 before a stock's first bar; the last bar
                 twice, so that every bar has a next one
    traded       [T, K] bool, whether the stock could be traded on that bar
    known        [T, K] bool, whether its indicators are known
    mean_close   [K] float64, of the training split
    """

    tickers: tuple[str, ...]
    times: NDArray[np.datetime64]
    splits: Mapping[Split, range]
    observed: Tensor
    observes_turbulence: bool
    turbulence: Tensor | None
    quoted: Tensor
    traded: Tensor
    known: Tensor
    mean_close: Tensor
    report: PreparationReport

    @property
    def features(self) -> Tensor:
        """[T, K, F] float32: close and indicators."""
        by_feature = self.observed[:, : self.observed.shape[1] - self.observes_turbulence]
        return by_feature.reshape(len(self.times), -1, len(self.tickers)).transpose(1, 2)

    @property
    def turbulence_feature(self) -> Tensor:
        """[T, 1] float32; [T, 0] where it is no indicator."""
        return self.observed[:, self.observed.shape[1] - self.observes_turbulence :]

    @property
    def open(self) -> Tensor:
        """[T, K] float64."""
        return self.quoted[0, :-1]

    @property
    def close(self) -> Tensor:
        """[T, K] float64."""
        return self.quoted[1, :-1]


_BLOCK_CELLS = 1 << 20  # bars of tickers that are aligned at a time


def prepare(config: StockTradingConfig, device: torch.device) -> Market:
    """Read, check, adjust, align, compute and standardize. Raises InvalidInput for a table that
    cannot be traded."""
    options = {name: getattr(config, name) for name in _PREPARING} | {
        "columns": dict(config.columns),
        "uses_turbulence": config.uses_turbulence,
    }
    arrays, values = shared_arrays(config.table, options, partial(_made, config))
    tickers, times = tuple(values["tickers"]), arrays["times"]
    splits = split_bars(times, values["first"], config)
    dates = tuple(
        ExRightsDate(name, np.datetime64(time, "us"), move, factor)
        for name, time, move, factor in values["ex_rights"]
    )
    tensors = {
        name: torch.from_numpy(arrays[name]).to(device)
        for name in ("observed", "quoted", "traded", "known", "mean_close", "turbulence")
    }
    turbulence = tensors.pop("turbulence")
    report = PreparationReport(
        config.table,
        tickers,
        times,
        splits,
        dates,
        values["filled_bars"],
        values["bars_of_no_volume"],
        arrays["dropped_times"],
    )
    return Market(
        tickers,
        times,
        splits,
        observes_turbulence="turbulence" in config.indicators,
        report=report,
        turbulence=turbulence if config.uses_turbulence else None,
        **tensors,
    )


_PREPARING = (
    *("adjust", "daily_limit", "gaps", "indicators", "rsi_window", "cci_window", "adx_window"),
    *("bollinger_window", "turbulence_window", "train_end", "validation_end", "train_fraction"),
    "validation_fraction",
)


def _made(config: StockTradingConfig, room: Room) -> dict[str, Any]:
    """The arrays of a market in `room`, some tickers at a time; returns what else it needs."""
    table = checked(read_table(config.table, config.columns))
    ex_rights: list[ExRightsDate] = []
    if config.adjust == "auto":
        ex_rights = find_ex_rights(table, config.daily_limit)
        table = adjusted(table, config.daily_limit)
    refuse_short(table, config)
    times, dropped = kept_times(table, config.gaps)
    arrays = room(_shapes(config, len(times), len(dropped), len(table.tickers)))
    arrays["times"][:], arrays["dropped_times"][:] = times, dropped
    stocks = len(table.tickers)
    blocks = _blocks(len(times), stocks)

    def aligned(first: int, last: int) -> AlignedBars:
        part = table.part(first, last)
        return align(part, indicators_of(part, config), times)

    close, traded, known = arrays["quoted"][1, :-1], arrays["traded"], arrays["known"]
    filled_bars = 0
    for first, last in blocks:
        block = aligned(first, last)
        arrays["quoted"][:, :-1, first:last] = block.open, block.close
        traded[:, first:last] = block.traded
        known[:, first:last] = (block.close > 0) & np.isfinite(block.indicators).all(axis=2)
        filled_bars += block.filled_bars
    arrays["quoted"][:, -1] = arrays["quoted"][:, -2]
    turbulence = (
        turbulence_of(close, traded, config.turbulence_window) if config.uses_turbulence else None
    )
    usable = _first_usable(known, turbulence, config)
    train = split_bars(times, usable, config)["train"]
    by_feature = arrays["observed"][:, : (1 + len(names_of(config))) * stocks]
    by_feature = by_feature.reshape(len(times), -1, stocks)  # a view
    for first, last in blocks:
        block = aligned(first, last)
        features, arrays["mean_close"][first:last] = _features(
            block, known[:, first:last], train, table.tickers[first:last]
        )
        by_feature[:, :, first:last] = features.transpose(0, 2, 1)
    if turbulence is not None:
        arrays["turbulence"][:] = np.nan_to_num(turbulence)
    if turbulence is not None and "turbulence" in config.indicators:
        arrays["observed"][:, -1] = _turbulence_feature(turbulence, train)
    _refuse_untraded(traded, known, train)
    return {
        "tickers": table.tickers,
        "first": usable,
        "ex_rights": [[each.ticker, str(each.time), each.move, each.factor] for each in ex_rights],
        "filled_bars": filled_bars,
        "bars_of_no_volume": int((table.volume == 0).sum()),
    }


def _shapes(
    config: StockTradingConfig, bars: int, dropped: int, stocks: int
) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The arrays of `Market`, and those of its report."""
    width = (1 + len(names_of(config))) * stocks + ("turbulence" in config.indicators)
    return {
        "times": ((bars,), "datetime64[us]"),
        "dropped_times": ((dropped,), "datetime64[us]"),
        "observed": ((bars, width), np.float32),
        "turbulence": ((bars if config.uses_turbulence else 0,), np.float64),
        "quoted": ((2, bars + 1, stocks), np.float64),
        "traded": ((bars, stocks), np.bool_),
        "known": ((bars, stocks), np.bool_),
        "mean_close": ((stocks,), np.float64),
    }


def _blocks(bars: int, stocks: int) -> list[tuple[int, int]]:
    """The first tickers, and those after the last, of what is aligned at a time: two tickers at
    least, as sums over one would round otherwise."""
    count = max(1, min(stocks // 2, bars * stocks // _BLOCK_CELLS))
    return list(pairwise(np.linspace(0, stocks, count + 1).astype(int).tolist()))


def _first_usable(
    known: NDArray[np.bool_],
    turbulence: NDArray[np.float64] | None,
    config: StockTradingConfig,
) -> int:
    """The first bar on which some stock's indicators and the turbulence are known."""
    usable = known.any(axis=1)
    needs = f"{bars_needed(config)} for {', '.join(names_of(config)) or 'the close'}"
    if turbulence is not None:
        usable &= np.isfinite(turbulence)
        needs += f", {config.turbulence_window + 2} for turbulence (see turbulence_window)"
    if not usable.any():
        raise refusal(
            "table",
            f"the table has {len(known)} bars, too few for the indicators, which need {needs}",
        )
    return int(np.argmax(usable))


def _refuse_untraded(traded: NDArray[np.bool_], known: NDArray[np.bool_], train: range) -> None:
    bars = slice(train.start, train.stop)
    if not (traded[bars] & known[bars]).any():
        message = "no bar of the training split can be traded, as all volumes in it are 0"
        raise refusal("table", f"{message}; where volumes are unknown, write 1")


def _features(
    bars: AlignedBars, known: NDArray[np.bool_], train: range, tickers: tuple[str, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[T, K, F] standardized, and the mean close [K]; both from the bars of `train` alone."""
    seen = known[train.start : train.stop]
    unseen = [
        ticker for ticker, any_bar in zip(tickers, np.any(seen, axis=0), strict=True) if not any_bar
    ]
    if unseen:
        message = f"{unseen[0]} has no bar with known indicators in the training split"
        raise refusal("table", f"{message}: leave it out of the table, or end training later")
    raw = np.concatenate([bars.close[:, :, None], bars.indicators], axis=2)
    rows = np.where(seen[:, :, None], raw[train.start : train.stop], np.nan)
    mean, deviation = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    scale = np.ones_like(mean)  # indicators have no unit
    scale[:, 0] = mean[:, 0]
    standardized = (raw - mean) / np.where(deviation > _STANDS_STILL * scale, deviation, scale)
    return np.where(known[:, :, None], standardized, 0.0), mean[:, 0]


def _turbulence_feature(turbulence: NDArray[np.float64], train: range) -> NDArray[np.float32]:
    rows = turbulence[train.start : train.stop]
    deviation = rows.std()
    standardized: NDArray[np.float64] = (turbulence - rows.mean()) / (deviation or 1.0)
    return np.nan_to_num(standardized).astype(np.float32)
