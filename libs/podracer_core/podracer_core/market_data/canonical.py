"""The one Parquet file that a table is stored as: the same bytes for the same table, with what was done to it beside.

Rows stand ticker after ticker, in each in the order of time. The metadata of the file says its schema's version, where
the table came from, whether its prices are adjusted, and by which factors, so that unadjusted bars can be added to it.
"""

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

from podracer_core.errors import InvalidInput
from podracer_core.market_data import COLUMNS, trading_library
from podracer_core.market_data.ex_rights import ExRightsDate
from podracer_core.market_data.table import PriceTable, moment

_SCHEMA = "1"
_KEY = b"podracer.market_data"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a canonical file says of itself.

    source        name of the file that it was made of
    adjust        auto: prices are adjusted by `ex_rights`; none: as they came
    daily_limit   that ex-rights dates were told by; None: as the market showed
    ex_rights     dates that were smoothed
    tickers, rows, first, last   what there is, first and last time
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
        """One line, keys sorted."""
        dates = [[each.ticker, str(each.time), each.move, each.factor] for each in self.ex_rights]
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps(values | {"schema": _SCHEMA, "ex_rights": dates}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Provenance:
        """Raises InvalidInput for a schema that is not known here, and for what is none."""
        try:
            values = json.loads(text)
            if (schema := values.pop("schema")) != _SCHEMA:
                raise InvalidInput(f"the data set has schema {schema!r}, {_SCHEMA!r} is known here")
            dates = [ExRightsDate(name, np.datetime64(at), move, by) for name, at, move, by in values.pop("ex_rights")]
            return cls(**values | {"ex_rights": tuple(dates), "tickers": tuple(values["tickers"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"the metadata of the data set is damaged: {error}") from error


def write_canonical(table: PriceTable, path: Path, provenance: Provenance) -> str:
    """Write the file, whole or not at all, and return its SHA-256. Raises InvalidInput where it cannot be written."""
    arrow, parquet = trading_library("pyarrow"), trading_library("pyarrow.parquet")
    first, last = moment(table.time.min()), moment(table.time.max())
    provenance = replace(provenance, tickers=table.tickers, rows=len(table.time), first=first, last=last)
    names = arrow.DictionaryArray.from_arrays(
        np.repeat(np.arange(len(table.tickers), dtype=np.int32), np.diff(table.bounds)), arrow.array(table.tickers)
    )
    prices = [np.ascontiguousarray(table.prices[:, column]) for column in range(4)]
    cells = [names.cast(arrow.string()), table.time, *prices, table.volume]
    rows = arrow.table(dict(zip(COLUMNS, cells, strict=True))).replace_schema_metadata({_KEY: provenance.to_json()})
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.absolute().parent, delete=False) as file:
            draft = Path(file.name)
            try:
                parquet.write_table(rows, file, compression="zstd", store_schema=True)
                file.flush()
                draft.chmod(0o644)
                os.replace(draft, path)  # noqa: PTH105 - the one call that says so
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}", path=path) from error
    return _sha256(path)


def read_provenance(path: Path) -> Provenance | None:
    """What the file says of itself; None for one that `write_canonical` has not written. Raises InvalidInput."""
    arrow, parquet = trading_library("pyarrow"), trading_library("pyarrow.parquet")
    try:
        metadata = parquet.read_schema(path).metadata or {}
    except (arrow.ArrowException, OSError):
        return None
    return Provenance.from_json(metadata[_KEY]) if _KEY in metadata else None


def unadjusted(table: PriceTable, dates: Sequence[ExRightsDate]) -> PriceTable:
    """The table before `adjusted`, up to rounding. Raises InvalidInput for a date that is not in it."""
    factor = np.ones(len(table.time))
    for date in dates:
        if date.ticker not in table.tickers:
            raise InvalidInput(f"the ex-rights date {date} is of no ticker of the data set")
        rows = table.rows(table.tickers.index(date.ticker))
        factor[rows.start + int(np.searchsorted(table.time[rows], date.time)) : rows.stop] *= date.factor
    return replace(table, prices=table.prices / factor[:, None], volume=table.volume * factor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
