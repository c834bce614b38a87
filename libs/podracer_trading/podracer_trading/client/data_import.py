"""Imports a price table into a canonical file, or a data set of the server."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from podracer_client.artifacts import download_data_set, store_data_set
from podracer_client.display import columns
from podracer_client.jobs import Client
from podracer_core.errors import Fenced, InvalidInput
from podracer_platform.rpc import is_label
from podracer_trading.market_data import (
    COLUMNS,
    JUMP_RULE,
    SPLIT_RULE,
    Inspection,
    PriceTable,
    Provenance,
    SyntheticMarket,
    append,
    checked,
    inspect,
    make_market,
    moment,
    prepared,
    read_provenance,
    read_table,
    write_canonical,
)

_TELL_FROM_BYTES = 32 << 20  # smaller files are read in a moment
_ATTEMPTS = 5  # to add bars to a data set that others add to at the same time
_SHOWN = 50
_UNITS = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The options of `podracer data import`."""

    table: Path
    columns: Mapping[str, str]
    adjust: str
    daily_limit: float | None
    output: Path | None
    name: str
    append: bool

    def __post_init__(self) -> None:
        if self.name and not is_label(self.name):
            expected = "expected lower-case letters, digits and '-', at most 63"
            raise InvalidInput(f"{self.name!r} cannot be the name of a data set: {expected}")


@dataclass(frozen=True, slots=True)
class Imported:
    """The result; without a place to store the table `sha256` is empty."""

    inspection: Inspection
    adjust: str
    rows: int
    added: int
    sha256: str

    def stored_values(self, request: ImportRequest) -> dict[str, object]:
        """The place where it was stored, as JSON values."""
        if not self.sha256:
            return {}
        places = {
            "path": str(request.output) if request.output else None,
            "name": request.name or None,
        }
        return {"sha256": self.sha256, "stored_rows": self.rows, "added_rows": self.added, **places}


def import_market_data(
    request: ImportRequest, connect: Callable[[], Client], told: TextIO | None
) -> Imported:
    """Read, check, inspect, adjust and store; `told` is called with a line for each step of a large
    table.

    The server is called only if the request has a name. Raises InvalidInput, with nothing stored.
    """
    say = _teller(request.table, told)
    say("reading")
    table = checked(read_table(str(request.table), request.columns))
    say(f"looking at {len(table.time):,} rows")
    inspection = inspect(table, request.daily_limit)
    provenance = Provenance(request.table.name, request.adjust, request.daily_limit)
    if not request.name:
        stored, provenance = prepared(table, provenance)
        sha256 = (
            "" if request.output is None else write_canonical(stored, request.output, provenance)
        )
        return Imported(inspection, request.adjust, len(stored.time), len(stored.time), sha256)
    with connect() as client, tempfile.TemporaryDirectory(prefix="podracer-data-") as folder:
        file = request.output or Path(folder) / "table.parquet"
        for attempt in range(1, _ATTEMPTS + 1):
            former_sha256, added = "", len(table.time)
            if request.append:
                say(f"fetching the data set {request.name}")
                former_sha256, stored, provenance, added = _appended(client, request, table)
            else:
                stored, provenance = prepared(table, provenance)
            say("writing")
            sha256 = write_canonical(stored, file, provenance)
            if (
                not added
                # another version of pyarrow may write the same rows as other bytes: nothing is new
                # all the same
            ):
                sha256 = former_sha256
                break
            say(f"storing {file.stat().st_size:,} bytes on the server")
            try:
                store_data_set(client, request.name, file, former_sha256=former_sha256)
                break
            except Fenced:
                # another import has added to it, or stored it anew, since it was fetched
                if attempt == _ATTEMPTS:
                    raise
    return Imported(inspection, provenance.adjust, len(stored.time), added, sha256)


def write_market(market: SyntheticMarket, path: Path) -> tuple[int, str]:
    """Write a synthetic market as CSV or canonical Parquet, by the path's ending; its rows and
    SHA-256."""
    table = make_market(market)
    if path.suffix == ".parquet":
        return len(table.time), write_canonical(
            table, path, Provenance(f"seed {market.seed}", "none", None)
        )
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for piece in _csv(table):
                digest.update(piece)
                file.write(piece)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", path=path) from error
    return len(table.time), digest.hexdigest()


def _appended(
    client: Client, request: ImportRequest, table: PriceTable
) -> tuple[str, PriceTable, Provenance, int]:
    """The former data set's SHA-256; the data set with the new bars, its provenance, and their
    number."""
    with download_data_set(client, request.name) as (artifact, file):
        provenance = read_provenance(file)
        if provenance is None:
            raise InvalidInput(
                f"the data set {request.name} was not stored by `podracer data import`: store it "
                "anew"
            )
        if (provenance.adjust, provenance.daily_limit) != (request.adjust, request.daily_limit):
            limit = (
                ""
                if provenance.daily_limit is None
                else f" --daily-limit {provenance.daily_limit:g}"
            )
            right = f"it was imported with --adjust {provenance.adjust}{limit}: say the same"
            raise InvalidInput(f"the data set {request.name} cannot be added to so: {right}")
        stored = checked(read_table(str(file), {}))
    return artifact.sha256, *append(stored, provenance, table)


def _csv(table: PriceTable) -> Iterator[bytes]:
    yield f"{','.join(COLUMNS)}\n".encode()
    for ticker, name in enumerate(table.tickers):
        rows = table.rows(ticker)
        for at, prices, volume in zip(
            table.time[rows], table.prices[rows], table.volume[rows], strict=True
        ):
            cells = [name, moment(at), *(f"{price:.4f}" for price in prices), f"{volume:.0f}"]
            yield f"{','.join(cells)}\n".encode()


def _teller(path: Path, told: TextIO | None) -> Callable[[str], None]:
    begin = time.monotonic()
    is_large = path.is_file() and path.stat().st_size >= _TELL_FROM_BYTES

    def say(step: str) -> None:
        if told is not None and is_large:
            told.write(f"{time.monotonic() - begin:6.1f} s  {step}\n")
            told.flush()

    return say


def inspection_text(inspection: Inspection, adjust: str) -> str:
    """A table of the tickers, and one for each kind of remarkable data."""
    stretch = (
        f"from {inspection.first} to {inspection.last}, a bar is "
        f"{length_text(inspection.bar_length_s)}"
    )
    head = (
        f"{len(inspection.tickers)} tickers, {inspection.rows:,} rows, {inspection.bars:,} "
        f"bars {stretch}"
    )
    numbers = ("bars", "missing", "gaps", "no volume")
    rows = [
        (
            each.ticker,
            f"{each.bars:,}",
            f"{each.missing:,}",
            f"{each.gaps:,}",
            f"{each.no_volume:,}",
        )
        for each in inspection.tickers
    ]
    parts = [head, columns(("ticker", *numbers), rows, right=numbers)]
    done = "smoothed" if adjust == "auto" else "left as they are"
    dates = [
        (each.ticker, moment(each.time), f"{each.move:+.1%}", f"{each.factor:.4f}")
        for each in inspection.ex_rights
    ]
    parts += _part(f"ex-rights dates, {done}", ("ticker", "date", "fall", "factor"), dates)
    splits = [(each.ticker, each.time, _split_text(each.shares)) for each in inspection.splits]
    parts += _part(f"probable splits ({SPLIT_RULE})", ("ticker", "time", "shares"), splits)
    jumps = [
        (each.ticker, each.time, f"{each.move:+.1%}", f"{each.score:+.1f}")
        for each in inspection.jumps
    ]
    parts += _part(
        f"suspicious jumps ({JUMP_RULE})", ("ticker", "time", "move", "deviations"), jumps
    )
    return "\n\n".join(parts) + "\n"


def length_text(seconds: float) -> str:
    """`1 day`, `5 minutes`; the largest unit that fits a whole number of times."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds" if seconds else "of unknown length"


def _part(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return [f"no {title}"]
    more = f"\nand {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
    return [f"{len(rows):,} {title}\n{columns(titles, rows[:_SHOWN], right=titles[2:])}{more}"]


def _split_text(shares: float) -> str:
    return f"1 became {shares:g}" if shares > 1 else f"{1 / shares:g} became 1"
