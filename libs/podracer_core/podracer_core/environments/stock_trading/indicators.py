"""Technical indicators of each ticker, through TA-Lib. Each uses the bars up to its own alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from podracer_core.environments.stock_trading.settings import Indicator, StockTradingConfig
from podracer_core.market_data.extras import trading_library
from podracer_core.market_data.refusal import refusal
from podracer_core.market_data.table import PriceTable

__all__ = ["bars_needed", "indicators_of", "names_of"]

_MACD = (12, 26, 9)  # fast, slow and signal windows: everyone's

Series = NDArray[np.float64]


def names_of(config: StockTradingConfig) -> tuple[Indicator, ...]:
    """Those of `config.indicators` that each ticker has one of; turbulence is the whole market's."""
    return tuple(name for name in config.indicators if name != "turbulence")


def bars_needed(config: StockTradingConfig) -> int:
    """The first so many bars of a ticker, less one, have no indicators yet."""
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
    """[R, I], NaN on bars before all of a ticker's are known. Raises InvalidInput for a ticker with too few bars.

    macd        MACD line of the close as a fraction of the close
    rsi, adx    0 … 100
    cci         TA-Lib's
    bollinger   where the close lies between the lower (0) and the upper (1) band of two standard deviations
    """
    names, needed = names_of(config), bars_needed(config)
    values = np.full((len(table.time), len(names)), np.nan)
    for ticker, name in enumerate(table.tickers):
        rows = table.rows(ticker)
        if rows.stop - rows.start < needed:
            message = f"{name} has {rows.stop - rows.start} bars; its indicators need {needed} at least"
            raise refusal("table", f"{message}: leave it out, or choose shorter windows")
        high, low, close = (np.ascontiguousarray(column) for column in table.prices[rows, 1:].T)
        for column, indicator in enumerate(names):
            values[rows, column] = _series(indicator, high, low, close, config)
        values[rows.start : rows.start + needed - 1] = np.nan
    return values


def _series(indicator: Indicator, high: Series, low: Series, close: Series, config: StockTradingConfig) -> Series:
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
            found = np.where(width > 0, (close - lower) / np.where(width > 0, width, 1.0), 0.5 + 0 * width)
    return np.asarray(found, dtype=np.float64)
