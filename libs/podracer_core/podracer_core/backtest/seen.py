"""Which bars a policy knows already: it was trained on some, and selected by how it did on others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podracer_core.environments.stock_trading.market import Market
from podracer_core.environments.stock_trading.settings import StockTradingConfig
from podracer_core.environments.stock_trading.split import evaluation_bars, split_bars, traded_splits
from podracer_core.errors import InvalidInput

__all__ = ["dated", "seen_bars"]

_OF_SPLITS = (
    *("train_end", "validation_end", "train_fraction", "validation_fraction"),
    *("split", "evaluation_split", "evaluation_start", "evaluation_end"),
)


def dated(kwargs: Mapping[str, Any], former: Market) -> dict[str, Any]:
    """An environment's arguments, with the days on which training and validation ended in `former`, the market of the
    training, where they do not name any. Fractions of a longer table would be other days, and what is observed would be
    standardized by them."""
    splits = split_bars(former.times, former.splits["all"].start, _splitting(kwargs))
    last = {f"{split}_end": former.times[splits[split][-1]] for split in ("train", "validation") if splits[split]}
    return {**{name: str(time.astype("datetime64[s]")).replace("T", " ") for name, time in last.items()}, **kwargs}


def seen_bars(
    kwargs: Mapping[str, Any], market: Market, until: np.datetime64 | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The bars of `market` on which a policy of an environment with these arguments was trained, and those by which it
    was selected, [T] each. `until` is the last bar of the table of that time, where the market may go on for longer.

    Raises InvalidInput for arguments with which nothing could have been trained.
    """
    config = _splitting(kwargs)
    splits = split_bars(market.times, market.splits["all"].start, config)
    trained, evaluated = traded_splits(config)
    try:
        selecting = evaluation_bars(splits, evaluated, market.times, config)
    except InvalidInput:  # those days are not in this table
        selecting = range(0)
    there = np.ones(len(market.times), bool) if until is None else market.times <= until
    bars = np.arange(len(market.times))
    return np.isin(bars, splits[trained]) & there, np.isin(bars, selecting) & there


def _splitting(kwargs: Mapping[str, Any]) -> StockTradingConfig:
    own = {name: kwargs[name] for name in _OF_SPLITS if name in kwargs}
    return StockTradingConfig.from_options({"table": "-", **own})
