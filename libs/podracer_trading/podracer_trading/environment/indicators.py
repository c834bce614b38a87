"""Technical indicators of each ticker, through TA-Lib. Each uses the bars up to its own alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from podracer_trading.info import Indicator, StockTradingConfig
from podracer_trading.market_data import PriceTable, refusal, trading_library

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


def indicators_of(table: PriceTable, config: StockTradingConfig) -> NDArray[np.float64]:
    """[R, I], NaN on bars before all of a ticker's are known. Raises InvalidInput for a ticker with
    too few bars.

    macd        MACD line of the close as a fraction of the close
    rsi, adx    0 … 100
    cci         TA-Lib's
    bollinger   where the close lies between the lower (0) and the upper (1) band of two standard
                deviations
    """
    names, needed = names_of(config), bars_needed(config)
    values = np.full((len(table.time), len(names)), np.nan)
    for ticker, name in enumerate(table.tickers):
        rows = table.rows(ticker)
        if rows.stop - rows.start < needed:
            message = (
                f"{name} has {rows.stop - rows.start} bars; its indicators need {needed} at least"
            )
            raise refusal("table", f"{message}: leave it out, or choose shorter windows")
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
