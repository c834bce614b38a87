"""Train, validation and test: three stretches of time, one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from podracer_trading.info import Split, StockTradingConfig
from podracer_trading.market_data import moment, refusal

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
        first = _start_of("evaluation_start", config.evaluation_start)
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


def _start_of(name: str, text: str) -> np.datetime64:
    """The first moment of what the text names."""
    first: np.datetime64 = _named(name, text).astype("datetime64[us]")
    return first


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
