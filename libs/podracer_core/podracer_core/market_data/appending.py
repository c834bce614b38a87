"""New bars behind those that a data set has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_core.market_data import refusal
from podracer_core.market_data.canonical import Provenance, unadjusted
from podracer_core.market_data.ex_rights import adjusted, find_ex_rights
from podracer_core.market_data.table import PriceTable, moment

# Relative: prices that were adjusted and brought back.
_ROUNDING = 1e-9
_NAMES = ("open", "high", "low", "close", "volume")


def prepared(table: PriceTable, provenance: Provenance) -> tuple[PriceTable, Provenance]:
    """The table as it is stored: adjusted where `provenance.adjust` is auto, with the dates of that."""
    if provenance.adjust != "auto":
        return table, provenance
    dates = tuple(find_ex_rights(table, provenance.daily_limit))
    return adjusted(table, provenance.daily_limit), replace(provenance, ex_rights=dates)


def append(stored: PriceTable, provenance: Provenance, new: PriceTable) -> tuple[PriceTable, Provenance, int]:
    """A data set with the bars of `new` (not adjusted) behind its own; how many were added comes third.

    Bars that both have must be equal. Those of the data set do not change, as ex-rights dates are chained forward.
    Raises InvalidInput that names the first bar that differs, lies between or before the data set's, or is of a ticker
    that it does not have.
    """
    former = unadjusted(stored, provenance.ex_rights)
    unknown = [ticker for ticker in new.tickers if ticker not in stored.tickers]
    if unknown:
        message = f"{unknown[0]} is no ticker of the data set ({', '.join(stored.tickers[:10])})"
        raise refusal("table", f"{message}: store the whole table anew without --append")
    stretches, is_new = [], []
    for ticker in stored.tickers:
        old = _rows(former, ticker)
        added = _rows(new, ticker) if ticker in new.tickers else slice(0, 0)
        late = np.asarray(new.time[added] > former.time[old][-1])
        _require_equal(former, old, new, added, late, ticker)
        rows = np.arange(added.start, added.stop)[late]
        stretches.append((old, rows))
        is_new.append(np.concatenate([np.zeros(old.stop - old.start, np.bool_), np.ones(len(rows), np.bool_)]))
    bounds = np.concatenate([[0], np.cumsum([len(each) for each in is_new])])
    raw = PriceTable(
        stored.tickers,
        bounds,
        np.concatenate([part for old, rows in stretches for part in (former.time[old], new.time[rows])]),
        np.concatenate([part for old, rows in stretches for part in (former.prices[old], new.prices[rows])]),
        np.concatenate([part for old, rows in stretches for part in (former.volume[old], new.volume[rows])]),
    )
    fresh = np.concatenate(is_new)
    if not fresh.any():
        return stored, provenance, 0
    together, told = prepared(raw, provenance)
    prices, volume = together.prices, together.volume
    prices[~fresh], volume[~fresh] = stored.prices, stored.volume
    known = {(each.ticker, each.time): each for each in provenance.ex_rights}
    dates = tuple(known.get((each.ticker, each.time), each) for each in told.ex_rights)
    if len([each for each in dates if (each.ticker, each.time) in known]) != len(known):
        raise InvalidInput("the data set's ex-rights dates cannot be found in it again: store the whole table anew")
    return replace(together, prices=prices, volume=volume), replace(told, ex_rights=dates), int(fresh.sum())


def _rows(table: PriceTable, ticker: str) -> slice:
    return table.rows(table.tickers.index(ticker))


def _require_equal(
    former: PriceTable, old: slice, new: PriceTable, added: slice, late: NDArray[np.bool_], ticker: str
) -> None:
    times = former.time[old]
    for row in np.arange(added.start, added.stop)[~late]:
        time = new.time[row]
        place = int(np.searchsorted(times, time))
        if times[place] != time:
            raise refusal("table", f"{ticker} {moment(time)} is no bar of the data set, and not behind its last")
        there = [*former.prices[old.start + place], former.volume[old.start + place]]
        for name, was, now in zip(_NAMES, there, [*new.prices[row], new.volume[row]], strict=True):
            if not np.isclose(was, now, rtol=_ROUNDING, atol=0):
                message = f"{ticker} {moment(time)}: {name} is {now:.10g}, and {was:.10g} in the data set"
                raise refusal("table", f"{message}; bars that both have must be equal")
