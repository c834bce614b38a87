"""The Parquet file of a stored table: the same bytes for the same table, with a record of all
changes to its prices.

Rows are sorted by ticker and time. The metadata of the file has the version of its schema, the
source of the table, whether its prices are adjusted, and the factors, so that unadjusted bars can
be appended."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_trading.market_data.columns import COLUMNS, refusal, trading_library
from podracer_trading.market_data.inspection import ExRightsDate, adjusted, find_ex_rights
from podracer_trading.market_data.table import PriceTable, moment

_SCHEMA = "1"
_KEY = b"podracer.market_data"
_CHUNK_BYTES = 1 << 20
_GROUP_ROWS = 1 << 20  # a row group, and what is converted at a time

# Relative: prices that were adjusted and brought back.
_ROUNDING = 1e-9
_NAMES = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a canonical file, stored in its metadata.

    source        name of the source file
    adjust        auto: prices are adjusted by `ex_rights`; none: unchanged
    daily_limit   the limit by which ex-rights dates were found; None: as observed in the market
    ex_rights     dates that were smoothed
    tickers, rows, first, last   their number, first and last time
    """

    source: str
    adjust: str
    daily_limit: float | None
    ex_rights: tuple[ExRightsDate, ...] = ()
    tickers: tuple[str, ...] = ()
    rows: int = 0
    first: str = ""
    last: str = ""

    def to_json(self) -> str:
        """The provenance as one line, keys sorted."""
        dates = [[each.ticker, str(each.time), each.move, each.factor] for each in self.ex_rights]
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps(values | {"schema": _SCHEMA, "ex_rights": dates}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Provenance:
        """The provenance in a text. Raises InvalidInput for an unknown schema, and for any other
        text."""
        try:
            values = json.loads(text)
            if (schema := values.pop("schema")) != _SCHEMA:
                raise InvalidInput(f"the data set has schema {schema!r}, {_SCHEMA!r} is known here")
            dates = [
                ExRightsDate(name, np.datetime64(at), move, by)
                for name, at, move, by in values.pop("ex_rights")
            ]
            return cls(**values | {"ex_rights": tuple(dates), "tickers": tuple(values["tickers"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"the metadata of the data set is damaged: {error}") from error


def write_canonical(table: PriceTable, path: Path, provenance: Provenance) -> str:
    """Write the file atomically and return its SHA-256. Raises InvalidInput if it cannot be
    written."""
    parquet = trading_library("pyarrow.parquet")
    first, last = moment(table.time.min()), moment(table.time.max())
    provenance = replace(
        provenance, tickers=table.tickers, rows=len(table.time), first=first, last=last
    )
    try:
        with tempfile.NamedTemporaryFile(
            prefix=f".{path.name}.", dir=path.absolute().parent, delete=False
        ) as file:
            draft = Path(file.name)
            try:
                schema = _rows_of(table, 0, 0).schema.with_metadata({_KEY: provenance.to_json()})
                with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                    for start in range(0, len(table.time), _GROUP_ROWS):
                        writer.write_table(_rows_of(table, start, start + _GROUP_ROWS))
                file.flush()
                draft.chmod(0o644)
                os.replace(draft, path)  # noqa: PTH105 - its name says that it replaces the file
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}", path=path) from error
    return _sha256(path)


def _rows_of(table: PriceTable, start: int, stop: int) -> Any:
    """Some rows as an Arrow table."""
    arrow = trading_library("pyarrow")
    rows = slice(start, min(stop, len(table.time)))
    code = np.searchsorted(table.bounds, np.arange(rows.start, rows.stop), side="right") - 1
    names = arrow.DictionaryArray.from_arrays(code.astype(np.int32), arrow.array(table.tickers))
    prices = [np.ascontiguousarray(table.prices[rows, column]) for column in range(4)]
    cells = [names.cast(arrow.string()), table.time[rows], *prices, table.volume[rows]]
    return arrow.table(dict(zip(COLUMNS, cells, strict=True)))


def read_provenance(path: Path) -> Provenance | None:
    """The provenance of a file; None for a file that `write_canonical` has not written. Raises
    InvalidInput."""
    arrow, parquet = trading_library("pyarrow"), trading_library("pyarrow.parquet")
    try:
        metadata = parquet.read_schema(path).metadata or {}
    except (arrow.ArrowException, OSError):
        return None
    return Provenance.from_json(metadata[_KEY]) if _KEY in metadata else None


def unadjusted(table: PriceTable, dates: Sequence[ExRightsDate]) -> PriceTable:
    """The table before `adjusted`, up to rounding. Raises InvalidInput for a date that is not in
    it."""
    factor = np.ones(len(table.time))
    for date in dates:
        if date.ticker not in table.tickers:
            raise InvalidInput(f"the ex-rights date {date} is of no ticker of the data set")
        rows = table.rows(table.tickers.index(date.ticker))
        factor[rows.start + int(np.searchsorted(table.time[rows], date.time)) : rows.stop] *= (
            date.factor
        )
    return replace(table, prices=table.prices / factor[:, None], volume=table.volume * factor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def prepared(table: PriceTable, provenance: Provenance) -> tuple[PriceTable, Provenance]:
    """The table to store: adjusted if `provenance.adjust` is auto, with the adjusted dates."""
    if provenance.adjust != "auto":
        return table, provenance
    dates = tuple(find_ex_rights(table, provenance.daily_limit))
    return adjusted(table, provenance.daily_limit), replace(provenance, ex_rights=dates)


def append(
    stored: PriceTable, provenance: Provenance, new: PriceTable
) -> tuple[PriceTable, Provenance, int]:
    """A data set with the bars of `new` (not adjusted) appended; the third value is their number.

    Common bars must be equal. Bars of the data set do not change, as ex-rights dates are chained
    forward. Raises InvalidInput with the first bar that differs, lies between or before the data
    set's, or has an unknown ticker."""
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
        is_new.append(
            np.concatenate([np.zeros(old.stop - old.start, np.bool_), np.ones(len(rows), np.bool_)])
        )
    bounds = np.concatenate([[0], np.cumsum([len(each) for each in is_new])])
    raw = PriceTable(
        stored.tickers,
        bounds,
        np.concatenate(
            [part for old, rows in stretches for part in (former.time[old], new.time[rows])]
        ),
        np.concatenate(
            [part for old, rows in stretches for part in (former.prices[old], new.prices[rows])]
        ),
        np.concatenate(
            [part for old, rows in stretches for part in (former.volume[old], new.volume[rows])]
        ),
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
        raise InvalidInput(
            "the data set's ex-rights dates cannot be found in it again: store the whole table anew"
        )
    return (
        replace(together, prices=prices, volume=volume),
        replace(told, ex_rights=dates),
        int(fresh.sum()),
    )


def _rows(table: PriceTable, ticker: str) -> slice:
    return table.rows(table.tickers.index(ticker))


def _require_equal(
    former: PriceTable,
    old: slice,
    new: PriceTable,
    added: slice,
    late: NDArray[np.bool_],
    ticker: str,
) -> None:
    times = former.time[old]
    for row in np.arange(added.start, added.stop)[~late]:
        time = new.time[row]
        place = int(np.searchsorted(times, time))
        if times[place] != time:
            raise refusal(
                "table",
                f"{ticker} {moment(time)} is no bar of the data set, and not behind its last",
            )
        there = [*former.prices[old.start + place], former.volume[old.start + place]]
        for name, was, now in zip(_NAMES, there, [*new.prices[row], new.volume[row]], strict=True):
            if not np.isclose(was, now, rtol=_ROUNDING, atol=0):
                message = (
                    f"{ticker} {moment(time)}: {name} is {now:.10g}, and {was:.10g} in the data set"
                )
                raise refusal("table", f"{message}; bars that both have must be equal")
