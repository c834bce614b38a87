"""StockTrading-v0: every knob, and what is known of it before it runs. Its spaces follow from the
table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from podracer_core.catalogue import ArgumentInfo, EnvironmentInfo, Recipe
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_trading.market_data import COLUMNS, FIELD

_LONGEST_WINDOW = 100_000  # TA-Lib's

Split = Literal["train", "validation", "test", "all"]
Score = Literal["profit", "sharpe_ratio"]
Indicator = Literal["macd", "rsi", "cci", "adx", "bollinger", "turbulence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StockTradingConfig:
    """Options of table and trading: `MEANINGS` in a line each, docs/environments/stock_trading.md
    in full."""

    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    adjust: Literal["auto", "none"] = "auto"
    daily_limit: float | None = None
    gaps: Literal["forward_fill", "drop_day", "error"] = "error"

    train_end: str | None = None
    validation_end: str | None = None
    train_fraction: float = 0.7
    validation_fraction: float = 0.15
    split: Split = "train"
    evaluation_split: Split | None = None
    evaluation_start: str | None = None
    evaluation_end: str | None = None
    score: Score = "profit"

    indicators: tuple[Indicator, ...] = ("macd", "rsi", "cci", "adx", "bollinger", "turbulence")
    rsi_window: int = 14
    cci_window: int = 14
    adx_window: int = 14
    bollinger_window: int = 20
    turbulence_window: int = 252

    initial_cash: float = 1_000_000.0
    max_stock: int = 100
    buy_cost: float = 0.001
    sell_cost: float = 0.001
    minimum_trade: int = 1
    cool_down: int = 0
    turbulence_threshold: float | None = None
    fill: Literal["next_open", "same_close"] = "next_open"
    reward_scale: float = 100.0

    random_start: bool = True
    random_holdings: bool = True

    def __post_init__(self) -> None:
        violations = list(self._violations())
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> StockTradingConfig:
        """Options from JSON values. Raises InvalidInput with every unknown name (and the nearest)
        and wrong value."""
        from podracer_core.config import (
            Builder,  # late: the catalogue does without YAML
            Node,
        )

        builder = Builder("", {})
        config = builder.dataclass(cls, Node.from_plain(options), FIELD)
        if builder.problems:
            violations = [
                FieldViolation(problem.field, problem.message) for problem in builder.problems
            ]
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)
        return config  # type: ignore[no-any-return]

    @property
    def uses_turbulence(self) -> bool:
        """Whether it has to be computed."""
        return "turbulence" in self.indicators or self.turbulence_threshold is not None

    def _violations(self) -> Iterator[FieldViolation]:
        for name in self.columns:
            if name not in COLUMNS:
                yield FieldViolation(
                    "columns", f"has {name!r}; its keys are among {', '.join(COLUMNS)}"
                )
        if len(set(self.indicators)) < len(self.indicators):
            yield FieldViolation("indicators", "names one twice")
        for name, least, most in (
            *(
                (f"{indicator}_window", 2, _LONGEST_WINDOW)
                for indicator in ("rsi", "cci", "adx", "bollinger", "turbulence")
            ),
            *(("max_stock", 1, 10**12), ("minimum_trade", 1, 10**12), ("cool_down", 0, 10**9)),
        ):
            if not least <= (value := getattr(self, name)) <= most:
                right = f"{least} or more" if value < least else f"{most:,} or less"
                yield FieldViolation(name, f"must be {right}, not {value}")
        for name in ("buy_cost", "sell_cost"):
            if not 0 <= getattr(self, name) < 1:
                message = (
                    "is a fraction of the traded value, 0 or more and below 1, not "
                    f"{getattr(self, name):g}"
                )
                yield FieldViolation(name, message)
        for name in ("initial_cash", "reward_scale", "turbulence_threshold"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                yield FieldViolation(name, f"must be above 0, not {value:g}")
        if self.daily_limit is not None and not 0 < self.daily_limit < 1:
            yield FieldViolation(
                "daily_limit",
                f"is a fraction between 0 and 1 (0.1 for 10 %), not {self.daily_limit:g}",
            )
        if self.minimum_trade > self.max_stock:
            message = (
                f"of {self.minimum_trade} shares is more than max_stock ({self.max_stock}): "
                "no order could be placed"
            )
            yield FieldViolation("minimum_trade", message)
        yield from self._split_violations()

    def _split_violations(self) -> Iterator[FieldViolation]:
        if self.validation_end is not None and self.train_end is None:
            yield FieldViolation("validation_end", "needs train_end beside it")
        for name in ("train_fraction", "validation_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                yield FieldViolation(name, f"must lie in 0 to 1, not {getattr(self, name):g}")
        if self.train_fraction + self.validation_fraction > 1 + 1e-9:
            total = self.train_fraction + self.validation_fraction
            yield FieldViolation(
                "validation_fraction", f"and train_fraction together are {total:g}, more than 1"
            )


MEANINGS = {
    "table": "CSV, Parquet or Arrow file: ticker, time, open, high, low, close, volume",
    "columns": "names in the file where they differ: {ticker: tic}",
    "adjust": "auto: smooth unadjusted ex-rights dates; none: leave prices alone",
    "daily_limit": "a fall over night beyond it is an ex-rights date; unset: as prices show",
    "gaps": "where a ticker has no row: forward_fill, drop_day, or error",
    "train_end": "last day of the training split; unset: by fractions",
    "validation_end": "last day of the validation split; unset: no test split",
    "train_fraction": "of the bars, without train_end",
    "validation_fraction": "of the bars, without train_end",
    "split": "what training trades: train, validation, test or all",
    "evaluation_split": "what evaluation trades; unset: validation, if any, where split is train",
    "evaluation_start": "first day that an evaluation trades; unset: as evaluation_split says",
    "evaluation_end": "last day that an evaluation trades; unset: as evaluation_split says",
    "score": "what evaluations rank by: profit (the return), or sharpe_ratio",
    "indicators": "in the observation, behind the close",
    "rsi_window": "bars",
    "cci_window": "bars",
    "adx_window": "bars",
    "bollinger_window": "bars",
    "turbulence_window": "bars; the table's first ones cannot be traded",
    "initial_cash": "in the table's currency",
    "max_stock": "shares of one stock that a decision buys or sells at most",
    "buy_cost": "fraction of the traded value",
    "sell_cost": "fraction of the traded value",
    "minimum_trade": "shares; a smaller order is not placed",
    "cool_down": "bars for which a stock rests after a trade",
    "turbulence_threshold": "above it everything is sold and nothing bought; unset: off",
    "fill": "next_open, or same_close",
    "reward_scale": "times the change of value as a part of initial_cash",
    "random_start": "training episodes start at any bar from which they fit",
    "random_holdings": "training episodes start with part of the cash in shares",
}


STOCK_TRADING = EnvironmentInfo(
    id="StockTrading-v0",
    description="Trade the stocks of a price table; the return is the profit in per cent of "
    "the initial cash",
    backend="torch",
    devices=("cpu", "cuda"),
    factory="podracer_trading.environment.environment:StockTrading",
    scores={"sharpe_ratio": "Sharpe"},
    ensemble_size=4,  # a short validation prefers a lucky agent; see benchmarks/trading.md
    recipes={
        "cpu": Recipe("benchmarks/trading.md", cohort_envs=256),
        "cuda": Recipe("benchmarks/trading.md", 4096, 128, 128),
    },
    arguments=tuple(
        ArgumentInfo(
            each.name, MEANINGS[each.name], required=True, example="./prices.csv", is_file=True
        )
        if each.name == "table"
        else ArgumentInfo(
            each.name, MEANINGS[each.name], {} if each.default is MISSING else each.default
        )
        for each in fields(StockTradingConfig)
    ),
)
