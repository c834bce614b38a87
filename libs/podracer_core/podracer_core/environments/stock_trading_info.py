"""Stock trading in torch. Its spaces follow from the table, so they are known once it has been started."""

from __future__ import annotations

from podracer_core.catalogue.environments.info import ArgumentInfo, EnvironmentInfo

__all__ = ["BUILT_IN"]

_INDICATORS = ("macd", "rsi", "cci", "adx", "bollinger", "turbulence")

BUILT_IN = (
    EnvironmentInfo(
        id="StockTrading-v0",
        description="Trade the stocks of a price table; the return is the profit in per cent of the initial cash",
        backend="torch",
        devices=("cpu", "cuda"),
        factory="podracer_core.environments.stock_trading.environment:StockTrading",
        scores={"sharpe_ratio": "Sharpe"},
        arguments=(
            ArgumentInfo(
                "table",
                "CSV, Parquet or Arrow file: ticker, time, open, high, low, close, volume",
                required=True,
                example="./prices.csv",
                is_file=True,
            ),
            ArgumentInfo("columns", "names in the file where they differ: {ticker: tic}", {}),
            ArgumentInfo("adjust", "auto: smooth unadjusted ex-rights dates; none: leave prices alone", "auto"),
            ArgumentInfo("daily_limit", "a fall over night beyond it is an ex-rights date; unset: as prices show"),
            ArgumentInfo("gaps", "where a ticker has no row: forward_fill, drop_day, or error", "error"),
            ArgumentInfo("train_end", "last day of the training split; unset: by fractions"),
            ArgumentInfo("validation_end", "last day of the validation split; unset: no test split"),
            ArgumentInfo("train_fraction", "of the bars, without train_end", 0.7),
            ArgumentInfo("validation_fraction", "of the bars, without train_end", 0.15),
            ArgumentInfo("split", "what training trades: train, validation, test or all", "train"),
            ArgumentInfo("evaluation_split", "what evaluation trades; unset: validation, if any, where split is train"),
            ArgumentInfo("evaluation_start", "first day that an evaluation trades; unset: as evaluation_split says"),
            ArgumentInfo("evaluation_end", "last day that an evaluation trades; unset: as evaluation_split says"),
            ArgumentInfo("score", "what evaluations rank by: profit (the return), or sharpe_ratio", "profit"),
            ArgumentInfo("indicators", "in the observation, behind the close", _INDICATORS),
            ArgumentInfo("rsi_window", "bars", 14),
            ArgumentInfo("cci_window", "bars", 14),
            ArgumentInfo("adx_window", "bars", 14),
            ArgumentInfo("bollinger_window", "bars", 20),
            ArgumentInfo("turbulence_window", "bars; the table's first ones cannot be traded", 252),
            ArgumentInfo("initial_cash", "in the table's currency", 1_000_000.0),
            ArgumentInfo("max_stock", "shares of one stock that a decision buys or sells at most", 100),
            ArgumentInfo("buy_cost", "fraction of the traded value", 0.001),
            ArgumentInfo("sell_cost", "fraction of the traded value", 0.001),
            ArgumentInfo("minimum_trade", "shares; a smaller order is not placed", 1),
            ArgumentInfo("cool_down", "bars for which a stock rests after a trade", 0),
            ArgumentInfo("turbulence_threshold", "above it everything is sold and nothing bought; unset: off"),
            ArgumentInfo("fill", "next_open, or same_close", "next_open"),
            ArgumentInfo("reward_scale", "times the change of value as a part of initial_cash", 100.0),
            ArgumentInfo("random_start", "training episodes start at any bar from which they fit", True),
            ArgumentInfo("random_holdings", "training episodes start with part of the cash in shares", True),
        ),
    ),
)
