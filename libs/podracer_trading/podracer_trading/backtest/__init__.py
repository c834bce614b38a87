"""Statistics of an account's values over time, and the records of policies; NumPy alone.

statistics    the usual ones of daily returns; months and drawdowns; whether the best of many
              policies is better than holding, or the best by chance
record        bar by bar: values, holdings, fills; their files and messages; one account from
              several

A policy's decisions are played by podracer_trading.backtesting.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_trading.backtest.record import (
        BacktestRecord, chained, chained_trades_csv, equity_csv, holdings_csv, record_from_messages,
        record_to_messages, replay, trades_csv,
    )
    from podracer_trading.backtest.statistics import (
        DAYS_A_YEAR, SIGNIFICANT, Drawdown, Edge, Performance, daily_returns, drawdowns,
        edge_over_holding, expected_maximum, independent_trials, largest_drawdown, monthly_returns,
        performance, sharpe_ratio,
    )
else:
    __all__, __getattr__ = exports(__name__)
