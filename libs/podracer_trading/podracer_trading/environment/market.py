"""Preparation of a price table, from its file to tensors on the device: everything that is done
once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from podracer_trading.environment.indicators import (
    bars_needed,
    indicators_of,
    names_of,
    turbulence_of,
)
from podracer_trading.environment.split import split_bars
from podracer_trading.info import Split, StockTradingConfig
from podracer_trading.market_data import (
    AlignedBars,
    ExRightsDate,
    adjusted,
    align,
    checked,
    find_ex_rights,
    moment,
    read_table,
    refusal,
)

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
    """T bars of K stocks. All tensors are on the device.

    tickers      [K]
    times        [T] datetime64[us]
    splits       the bars of each split; those of none are the indicators' first ones
    features     [T, K, F] float32: close and indicators, standardized with the training split's
                 mean and deviation of each stock; 0 before a stock's are known
    turbulence   [T] float64, 0 before it is known; None if the configuration does not use it
    turbulence_feature  [T, 1] float32, standardized likewise; [T, 0] where it is no indicator
    open, close  [T, K] float64, 0 before a stock's first bar
    traded       [T, K] bool, whether the stock could be traded on that bar
    known        [T, K] bool, whether its indicators are known
    mean_close   [K] float64, of the training split
    """

    tickers: tuple[str, ...]
    times: NDArray[np.datetime64]
    splits: Mapping[Split, range]
    features: Tensor
    turbulence: Tensor | None
    turbulence_feature: Tensor
    open: Tensor
    close: Tensor
    traded: Tensor
    known: Tensor
    mean_close: Tensor
    report: PreparationReport


def prepare(config: StockTradingConfig, device: torch.device) -> Market:
    """Read, check, adjust, align, compute and standardize. Raises InvalidInput for a table that
    cannot be traded."""
    table = checked(read_table(config.table, config.columns))
    ex_rights: list[ExRightsDate] = []
    if config.adjust == "auto":
        ex_rights = find_ex_rights(table, config.daily_limit)
        table = adjusted(table, config.daily_limit)
    bars = align(table, indicators_of(table, config), config.gaps)
    known = (bars.close > 0) & np.isfinite(bars.indicators).all(axis=2)
    turbulence = (
        turbulence_of(bars.close, bars.traded, config.turbulence_window)
        if config.uses_turbulence
        else None
    )
    splits = split_bars(bars.times, _first_usable(bars, known, turbulence, config), config)
    features, mean_close = _features(bars, known, splits["train"], table.tickers)
    _refuse_untraded(bars.traded & known, splits["train"])

    def tensor(values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    return Market(
        table.tickers,
        bars.times,
        splits,
        tensor(features.astype(np.float32)),
        None if turbulence is None else tensor(np.nan_to_num(turbulence)),
        tensor(_turbulence_feature(turbulence, len(bars.times), splits["train"], config)),
        tensor(bars.open),
        tensor(bars.close),
        tensor(bars.traded),
        tensor(known),
        tensor(mean_close),
        PreparationReport(
            config.table,
            table.tickers,
            bars.times,
            splits,
            tuple(ex_rights),
            bars.filled_bars,
            int((table.volume == 0).sum()),
            bars.dropped_times,
        ),
    )


def _first_usable(
    bars: AlignedBars,
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
            f"the table has {len(bars.times)} bars, too few for the indicators, which need {needs}",
        )
    return int(np.argmax(usable))


def _refuse_untraded(can_trade: NDArray[np.bool_], train: range) -> None:
    if not can_trade[train.start : train.stop].any():
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


def _turbulence_feature(
    turbulence: NDArray[np.float64] | None, bars: int, train: range, config: StockTradingConfig
) -> NDArray[np.float32]:
    if turbulence is None or "turbulence" not in config.indicators:
        return np.zeros((bars, 0), dtype=np.float32)
    rows = turbulence[train.start : train.stop]
    deviation = rows.std()
    standardized: NDArray[np.float64] = (turbulence - rows.mean()) / (deviation or 1.0)
    return np.nan_to_num(standardized).astype(np.float32)[:, None]
