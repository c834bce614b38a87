"""A price table: read from a file in any of three formats, checked (every row a bar of one ticker,
all bars of a ticker in the order of time), and aligned to one time axis."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput
from podracer_trading.market_data.columns import COLUMNS, refusal, trading_library

_WITH_OFFSET = r"^(?P<time>.{10}[ T][\d:.]+)(?P<offset>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)$"


def wall_clock_times(cells: Any, name: str) -> Any:
    """Timestamps of one zone as the wall-clock times there, without a zone; those without one
    unchanged.

    Raises InvalidInput for an unknown zone.
    """
    arrow, compute = trading_library("pyarrow"), trading_library("pyarrow.compute")
    if not arrow.types.is_timestamp(cells.type) or cells.type.tz is None:
        return cells
    try:
        return compute.local_timestamp(cells)
    except arrow.ArrowInvalid as error:
        message = (
            f"column {name!r} has the time zone {cells.type.tz!r}, which is not known on "
            f"this machine: {error}"
        )
        raise refusal("table", f"{message}; leave the zone out") from error


def times_without_offsets(cells: Any) -> Any:
    """Texts of times without the final Z or +08:00; other texts unchanged."""
    compute = trading_library("pyarrow.compute")
    found = compute.extract_regex(cells, _WITH_OFFSET)
    return compute.coalesce(compute.struct_field(found, "time"), cells)


def refuse_mixed_offsets(cells: Any, name: str) -> None:
    """Raise InvalidInput with the first two texts whose offsets from UTC differ, or that have
    none."""
    compute = trading_library("pyarrow.compute")
    offsets = compute.struct_field(compute.extract_regex(cells, _WITH_OFFSET), "offset")
    coded = compute.dictionary_encode(offsets, null_encoding="encode")
    minutes = [_minutes(offset) for offset in coded.dictionary.to_pylist()]
    others = [code for code, value in enumerate(minutes) if value != minutes[0]]
    if not others:
        return
    row = min(compute.index(coded.indices, code).as_py() for code in others)
    told = f"row {row + 1}: {name!r} is {cells[row].as_py()!r}, and {cells[0].as_py()!r} in row 1"
    right = "Leave them out, or take a Parquet or Arrow file whose column has the time zone"
    raise refusal("table", f"{told}: the offsets from UTC must all be the same. {right}")


def _minutes(offset: str | None) -> int | None:
    if offset is None or offset == "Z":
        return None if offset is None else 0
    hours, minutes = int(offset[1:3]), int(offset[3:].removeprefix(":") or 0)
    return (-1 if offset[0] == "-" else 1) * (60 * hours + minutes)


# What other tools call these columns.
_ALIASES = {
    "ticker": ("tic", "symbol", "code", "stock", "instrument", "ts_code"),
    "time": ("date", "datetime", "timestamp", "trade_date", "day"),
    "volume": ("vol",),
}


class RawTable(NamedTuple):
    """The rows of a file in its order.

    names     [K] str objects, in any order; some may be of no row
    code      [R] int32, the place of a row's ticker in `names`
    time      [R] datetime64[us], wall-clock times in the file's zone, if it has one
    prices    [R, 4] float64: open, high, low, close; in memory column after column
    volume    [R] float64
    """

    names: NDArray[np.object_]
    code: NDArray[np.int32]
    time: NDArray[np.datetime64]
    prices: NDArray[np.float64]
    volume: NDArray[np.float64]

    @property
    def ticker(self) -> NDArray[np.object_]:
        """[R] str objects."""
        return self.names[self.code]


def read_table(path: str, columns: Mapping[str, str]) -> RawTable:
    """Read the file; its first bytes determine the format. `columns` are the names in the file, if
    they differ.

    Raises InvalidInput for a file that cannot be read, a missing column and a cell of the wrong
    type."""
    names = {name: columns.get(name, name) for name in COLUMNS}
    table = _open(path, names)
    missing = [name for name in COLUMNS if names[name] not in table.column_names]
    if missing:
        raise _missing(path, missing, names, table.column_names)
    twice = [column for column in names.values() if table.column_names.count(column) > 1]
    if twice:
        raise refusal("table", f"{path} has more than one column {twice[0]!r}")
    if table.num_rows == 0:
        raise refusal("table", f"{path} has no rows")
    arrow = trading_library("pyarrow")
    rows, cells = table.num_rows, _one_by_one(table, [names[name] for name in COLUMNS])
    del table  # a column goes when it has been converted: the table is never in memory twice
    texts, code = _coded(next(cells), names["ticker"])
    time = _column(next(cells), names["time"], arrow.timestamp("us"))
    prices = np.empty((rows, 4), order="F")
    for place, name in enumerate(("open", "high", "low", "close")):
        _fill(prices[:, place], next(cells), names[name])
    volume = np.empty(rows)
    _fill(volume, next(cells), names["volume"])
    arrow.default_memory_pool().release_unused()  # a fifth of a large table, else kept for later
    return RawTable(texts, code, time.to_numpy(zero_copy_only=False), prices, volume)


def _fill(numbers: NDArray[np.float64], cells: Any, name: str) -> None:
    """Write a column of numbers [R], piece by piece."""
    kind, row = trading_library("pyarrow").float64(), 0
    for piece in cells.chunks:
        numbers[row : row + len(piece)] = _column(piece, name, kind, row)
        row += len(piece)


def _one_by_one(table: Any, names: Sequence[str]) -> Iterator[Any]:
    """The columns in turn; neither a column that was taken nor the table is kept."""
    if isinstance(table, _Parquet):
        yield from map(table.column, names)
        return
    columns = [table.column(name) for name in reversed(names)]
    del table
    while columns:
        yield columns.pop()


def _coded(cells: Any, name: str) -> tuple[NDArray[np.object_], NDArray[np.int32]]:
    """The texts of a column, and the place of each row's among them."""
    arrow, compute = trading_library("pyarrow"), trading_library("pyarrow.compute")
    cells = cells.combine_chunks() if isinstance(cells, arrow.ChunkedArray) else cells
    texts = None
    if arrow.types.is_dictionary(cells.type) and not cells.null_count:
        with contextlib.suppress(InvalidInput):  # else the rows are looked at, to name the first
            texts, indices = _column(cells.dictionary, name, arrow.string()), cells.indices
    if texts is None:
        coded = compute.dictionary_encode(_column(cells, name, arrow.string()))
        texts, indices = coded.dictionary, coded.indices
    return np.array(texts.to_pylist(), dtype=object), indices.to_numpy().astype(
        np.int32, copy=False
    )


def read_index(
    path: str, columns: Mapping[str, str], index: str
) -> tuple[NDArray[np.datetime64], NDArray[np.float64]]:
    """An index in a separate column: rising times [T], and its levels [T].

    Raises InvalidInput as `read_table`, and if the rows of one time have different levels, or a
    level is not above 0."""
    names = {"time": columns.get("time", "time"), "index": index}
    table = _open(path, names)
    missing = [column for column in names.values() if column not in table.column_names]
    if missing:
        found = ", ".join(table.column_names)
        raise refusal("index_column", f"{path} has no column {missing[0]!r}; it has {found}")
    arrow = trading_library("pyarrow")
    times = _column(table.column(names["time"]), names["time"], arrow.timestamp("us")).to_numpy(
        zero_copy_only=False
    )
    level = _column(table.column(index), index, arrow.float64()).to_numpy(zero_copy_only=False)
    moments, first, which = np.unique(times, return_index=True, return_inverse=True)
    if not (np.isfinite(level) & (level > 0)).all():
        row = int(np.argmin(np.isfinite(level) & (level > 0)))
        raise refusal(
            "index_column",
            f"row {row + 1}: {index!r} is {level[row]:g}; the level of an index is above 0",
        )
    if (differs := level != level[first][which]).any():
        row = int(np.argmax(differs))
        both = f"{level[first][which][row]:g} and {level[row]:g}"
        message = (
            f"{index!r} is {both} at {times[row]}: the level of an index is the same for "
            "all tickers at a time"
        )
        raise refusal("index_column", message)
    return moments, level[first]


def _open(path: str, names: Mapping[str, str]) -> Any:
    arrow = trading_library("pyarrow")
    try:
        with Path(path).open("rb") as file:
            start = file.read(6)
        if start[:4] == b"PAR1":
            return _Parquet(path, names.get("ticker"))
        if start in (b"ARROW1", b"FEA1"):
            return trading_library("pyarrow.feather").read_table(path)
        if start[:4] == b"\xff\xff\xff\xff":
            return arrow.ipc.open_stream(path).read_all()
        return _open_csv(path, names, compression="gzip" if start[:2] == b"\x1f\x8b" else None)
    except OSError as error:
        raise refusal(
            "table", f"cannot read the table {path}: {error.strerror or error}"
        ) from error
    except (arrow.ArrowException, ValueError) as error:
        # a text that is not UTF-8, or a path with a zero byte in it
        message = (
            f"{path} is not a table in CSV (UTF-8, with a line of column names), Parquet or "
            f"Arrow: {error}"
        )
        raise refusal("table", message) from error


class _Parquet:
    """A Parquet file in the form of an Arrow table. A column is read when it is asked for."""

    def __init__(self, path: str, coded: str | None) -> None:
        """`coded` is a column of texts that is to be read as a dictionary."""
        parquet = trading_library("pyarrow.parquet")
        self._file = parquet.ParquetFile(path, read_dictionary=coded and [coded])
        self.column_names = self._file.schema_arrow.names
        self.num_rows = self._file.metadata.num_rows

    def column(self, name: str) -> Any:
        """One that is there once."""
        return self._file.read(columns=[name]).column(0)


def _open_csv(path: str, names: Mapping[str, str], compression: str | None) -> Any:
    """The requested columns, piece by piece: the text of a large file is never in memory as a
    whole. Ticker and time stay texts, so that 000001 keeps its zeros. If a column is missing or
    duplicate, there are no rows."""
    arrow, csv = trading_library("pyarrow"), trading_library("pyarrow.csv")
    reading = csv.ReadOptions(use_threads=False)
    with arrow.input_stream(path, compression=compression) as file:
        found = csv.open_csv(file, reading).schema.names
    plain = [column.strip() for column in found]
    is_whole = all(plain.count(column) == 1 for column in names.values())
    wanted = [found[plain.index(column)] for column in names.values()] if is_whole else []
    as_text = csv.ConvertOptions(
        column_types=dict.fromkeys(found, arrow.string()), include_columns=wanted
    )
    pieces: list[Any] = []
    rows = 0
    with arrow.input_stream(path, compression=compression) as file:
        for batch in csv.open_csv(file, reading, convert_options=as_text):
            if is_whole:
                cells = [
                    _compact(batch.column(place), names[name], name, rows)
                    for place, name in enumerate(names)
                ]
                pieces.append(arrow.table(cells, names=list(names.values())))
            rows += batch.num_rows
    if not is_whole or not rows:
        return arrow.table([arrow.nulls(0)] * len(plain), names=plain)
    return arrow.concat_tables(pieces).unify_dictionaries()


def _compact(cells: Any, column: str, name: str, first_row: int) -> Any:
    """A piece of a column in its final type, which needs less memory; `first_row` is its place in
    the file."""
    arrow, compute = trading_library("pyarrow"), trading_library("pyarrow.compute")
    if name in ("ticker", "time"):
        return compute.dictionary_encode(cells)
    return _column(cells, column, arrow.float64(), first_row)


def _missing(
    path: str, missing: list[str], names: Mapping[str, str], found: list[str]
) -> InvalidInput:
    """The error for missing columns, with the existing ones and the mapping that is most likely
    meant."""
    told = ", ".join(repr(names[name]) for name in missing)
    message = f"{path} has no column {told}; it has {', '.join(found)}"
    if len(found) == 1 and (other := next((mark for mark in ";\t|" if mark in found[0]), "")):
        return refusal(
            "table", f"{message}: columns of a CSV are separated by commas, not by {other!r}"
        )
    meant = {}
    for name in missing:
        free = {column.lower(): column for column in found if column not in names.values()}
        likely = [alias for alias in (name, *_ALIASES.get(name, ())) if alias in free]
        likely += difflib.get_close_matches(name, free, n=1)
        if likely:
            meant[name] = free[likely[0]]
    if meant:
        pairs = ", ".join(f"{name}: {column}" for name, column in meant.items())
        message += f". Map the columns: columns: {{{pairs}}}"
    return refusal("columns", message)


def _column(cells: Any, name: str, kind: Any, first_row: int = 0) -> Any:
    """One column as `kind`, from `first_row` of the file on. Raises InvalidInput with the first row
    whose cell is empty or has another type."""
    arrow, compute = trading_library("pyarrow"), trading_library("pyarrow.compute")
    types, is_time = arrow.types, arrow.types.is_timestamp(kind)
    cells = cells.combine_chunks() if isinstance(cells, arrow.ChunkedArray) else cells
    if types.is_dictionary(cells.type):
        if not cells.null_count:
            with contextlib.suppress(
                InvalidInput
            ):  # else the rows are looked at, to name the first
                return _column(cells.dictionary, name, kind).take(cells.indices)
        cells = cells.dictionary_decode()
    is_text = (
        types.is_string(cells.type)
        or types.is_large_string(cells.type)
        or types.is_string_view(cells.type)
    )
    if is_text or (is_time and types.is_integer(cells.type)):
        cells, is_text = compute.utf8_trim_whitespace(cells.cast(arrow.string())), True
    elif is_time and not types.is_temporal(cells.type):
        message = (
            f"column {name!r} holds {cells.type}; dates such as 2019-12-31 or timestamps "
            "are expected"
        )
        raise refusal("table", message)
    empty = compute.fill_null(compute.equal(cells, ""), True) if is_text else compute.is_null(cells)
    row = compute.index(empty, True).as_py()
    if row >= 0:
        raise refusal("table", f"row {first_row + row + 1}: {name!r} is empty")
    told = cells
    if is_text and is_time:
        cells = compute.replace_substring_regex(cells, r"^(\d{4})(\d{2})(\d{2})\b", r"\1-\2-\3")
        if not _casts(cells, kind):
            cells = times_without_offsets(cells)
            if _casts(cells, kind):
                refuse_mixed_offsets(told, name)
    elif is_time:
        cells = wall_clock_times(cells, name)
    if _casts(cells, kind):
        # Volumes beyond 2^53 lose their last digits, times what is shorter than a microsecond.
        return compute.cast(cells, kind, safe=False)
    row = _first_misfit(cells, kind)
    right = "a date such as 2019-12-31, or 2019-12-31 09:30" if is_time else "a number"
    raise refusal(
        "table",
        f"row {first_row + row + 1}: {name!r} is {told[row].as_py()!r}; {right} is expected",
    )


def _casts(cells: Any, kind: Any) -> bool:
    arrow, compute = trading_library("pyarrow"), trading_library("pyarrow.compute")
    try:
        compute.cast(cells, kind, safe=False)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        return False
    return True


def _first_misfit(cells: Any, kind: Any) -> int:
    """The first row that cannot be cast, by bisection."""
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        if _casts(cells.slice(low, middle - low), kind):
            low = middle
        else:
            high = middle
    return low


# Relative. Prices that went through float32 may leave [low, high] by a rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class PriceTable:
    """R bars of K tickers, ticker after ticker.

    tickers   [K], sorted
    bounds    [K + 1]: the bars of ticker k are the rows bounds[k] to bounds[k + 1]
    time      [R] datetime64[us], rising within a ticker
    prices    [R, 4] float64: open, high, low, close; a column lies together in memory
    volume    [R] float64
    """

    tickers: tuple[str, ...]
    bounds: NDArray[np.int64]
    time: NDArray[np.datetime64]
    prices: NDArray[np.float64]
    volume: NDArray[np.float64]

    def rows(self, ticker: int) -> slice:
        """The bars of one ticker."""
        return slice(int(self.bounds[ticker]), int(self.bounds[ticker + 1]))

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """[R], true for the first bar of each ticker."""
        first = np.zeros(len(self.time), dtype=np.bool_)
        first[self.bounds[:-1]] = True
        return first

    def part(self, first: int, last: int) -> PriceTable:
        """The tickers from `first` to before `last`; nothing is copied."""
        rows = slice(int(self.bounds[first]), int(self.bounds[last]))
        return PriceTable(
            self.tickers[first:last],
            self.bounds[first : last + 1] - self.bounds[first],
            self.time[rows],
            self.prices[rows],
            self.volume[rows],
        )

    def axis(self) -> NDArray[np.datetime64]:
        """[T], rising: every time at which some ticker has a bar."""
        times = self.time[self.rows(0)]
        for ticker in range(1, len(self.tickers)):
            own = self.time[self.rows(ticker)]
            place = np.minimum(np.searchsorted(times, own), len(times) - 1)
            if (times[place] != own).any():
                times = np.union1d(times, own)
        return times


def checked(raw: RawTable) -> PriceTable:
    """The same rows, grouped by ticker. Raises InvalidInput with the first row, ticker and time at
    which a price is impossible, or a time is a duplicate or earlier than the previous one."""
    open_, high, low, close = raw.prices.T
    for column, values in (("open", open_), ("high", high), ("low", low), ("close", close)):
        _refuse_first(raw, ~(np.isfinite(values) & (values > 0)), column, values, "a price above 0")
    _refuse_first(
        raw, ~(np.isfinite(raw.volume) & (raw.volume >= 0)), "volume", raw.volume, "0 or more"
    )
    _refuse_first(raw, high < low * (1 - _ROUNDING), "high", high, "not below low", low)
    for column, values in (("open", open_), ("close", close)):
        _refuse_first(raw, values > high * (1 + _ROUNDING), column, values, "not above high", high)
        _refuse_first(raw, values < low * (1 - _ROUNDING), column, values, "not below low", low)
    is_used = np.bincount(raw.code, minlength=len(raw.names)) > 0
    tickers, place = np.unique(raw.names[is_used].astype(str), return_inverse=True)
    rank = np.zeros(len(raw.names), dtype=np.int32)
    rank[is_used] = place
    code = rank[raw.code]
    order: NDArray[np.int64] | slice = slice(None)  # copies nothing
    if (code[1:] < code[:-1]).any():
        order = np.argsort(code, kind="stable")
    code, time = code[order], raw.time[order]
    if ((code[1:] == code[:-1]) & (time[1:] <= time[:-1])).any():
        _refuse_duplicates(raw, rank[raw.code])
        _refuse_disorder(raw, rank[raw.code], np.arange(len(time))[order])
    bounds = np.searchsorted(code, np.arange(len(tickers) + 1))
    prices = raw.prices
    if not isinstance(order, slice):
        prices = np.empty_like(raw.prices)
        for number in range(4):
            prices[:, number] = raw.prices[order, number]
    return PriceTable(tuple(map(str, tickers)), bounds, time, prices, raw.volume[order])


def _refuse_first(
    raw: RawTable,
    wrong: NDArray[np.bool_],
    column: str,
    values: NDArray[np.float64],
    right: str,
    bound: NDArray[np.float64] | None = None,
) -> None:
    if not wrong.any():
        return
    row = int(np.argmax(wrong))
    limit = "" if bound is None else f" ({bound[row]:g})"
    raise refusal(
        "table", f"{_place(raw, row)}: {column} is {values[row]:g}; {right}{limit} is expected"
    )


def _refuse_duplicates(raw: RawTable, code: NDArray[np.int32]) -> None:
    order = np.lexsort((raw.time, code))
    first, second = order[:-1], order[1:]
    same = (code[first] == code[second]) & (raw.time[first] == raw.time[second])
    if same.any():
        # The sort is stable, so of two equal rows the later one of the file stands second.
        index = np.flatnonzero(same)[np.argmin(second[same])]
        again = f"row {first[index] + 1} has the same ticker and time"
        raise refusal("table", f"{_place(raw, int(second[index]))} is there twice: {again}")


def _refuse_disorder(raw: RawTable, code: NDArray[np.int32], order: NDArray[np.int64]) -> None:
    before, after = order[:-1], order[1:]
    late = (code[before] == code[after]) & (raw.time[after] < raw.time[before])
    if late.any():
        index = np.flatnonzero(late)[np.argmin(after[late])]
        earlier = f"{moment(raw.time[before[index]])} (row {before[index] + 1})"
        message = (
            f"{_place(raw, int(after[index]))} comes after that ticker's {earlier}; sort "
            "the table by time"
        )
        raise refusal("table", message)


def _place(raw: RawTable, row: int) -> str:
    return f"row {row + 1} ({raw.names[raw.code[row]]}, {moment(raw.time[row])})"


def moment(time: np.datetime64) -> str:
    """The shortest text of a time."""
    text = str(time.astype("datetime64[s]")).removesuffix(":00")
    return text.removesuffix("T00:00").replace("T", " ")


@dataclass(frozen=True, slots=True)
class AlignedBars:
    """T bars of K tickers. Without a bar, all prices of a ticker are its last close; before its
    first bar, 0.

    times           [T] datetime64[us]
    open, close     [T, K] float64
    traded          [T, K] whether there was a bar, with a volume
    indicators      [T, K, I] float64, those of the last bar; NaN until they are defined
    filled_bars     total number of missing bars of all tickers
    """

    times: NDArray[np.datetime64]
    open: NDArray[np.float64]
    close: NDArray[np.float64]
    traded: NDArray[np.bool_]
    indicators: NDArray[np.float64]
    filled_bars: int


def kept_times(
    table: PriceTable, gaps: str
) -> tuple[NDArray[np.datetime64], NDArray[np.datetime64]]:
    """The times of the bars, and those left out because a ticker has no bar. Raises InvalidInput
    for a gap if `gaps` is error, and if drop_day would leave no bars."""
    times = table.axis()
    counts = np.zeros(len(times), np.int64)
    for ticker in range(len(table.tickers)):
        counts[np.searchsorted(times, table.time[table.rows(ticker)])] += 1
    lacks = counts < len(table.tickers)
    if gaps == "error" and lacks.any():
        raise _gap(table, times, lacks)
    if gaps != "drop_day":
        return times, times[:0]
    if lacks.all():
        message = (
            "gaps: drop_day leaves nothing, as there is no time at which all tickers have a bar"
        )
        raise refusal("gaps", f"{message}; use forward_fill, or leave tickers out")
    return times[~lacks], times[lacks]


def align(
    table: PriceTable, indicators: NDArray[np.float64], times: NDArray[np.datetime64]
) -> AlignedBars:
    """Align the bars at these times, which are `kept_times`, maybe of more tickers."""
    row = np.full((len(times), len(table.tickers)), -1)
    for ticker in range(len(table.tickers)):
        rows = np.arange(len(table.time))[table.rows(ticker)]
        bar = np.minimum(np.searchsorted(times, table.time[rows]), len(times) - 1)
        is_kept = times[bar] == table.time[rows]
        row[bar[is_kept], ticker] = rows[is_kept]
    lacks = row < 0
    latest = np.maximum.accumulate(row, axis=0)  # rows of a ticker rise with time
    unknown = latest < 0
    open_ = np.where(lacks, table.prices[latest, 3], table.prices[latest, 0])
    return AlignedBars(
        times,
        np.where(unknown, 0.0, open_),
        np.where(unknown, 0.0, table.prices[latest, 3]),
        ~lacks & (table.volume[latest] > 0),
        np.where(unknown[:, :, None], np.nan, indicators[latest]),
        int(lacks.sum()),
    )


def _gap(
    table: PriceTable, times: NDArray[np.datetime64], lacks: NDArray[np.bool_]
) -> InvalidInput:
    bar = int(np.argmax(lacks))
    ticker = next(
        ticker
        for ticker in range(len(table.tickers))
        if times[bar] not in table.time[table.rows(ticker)]
    )
    count = int(lacks.sum())
    message = (
        f"{table.tickers[ticker]} has no bar at {moment(times[bar])}, where others have; such gaps "
        f"are on {count} of {len(times)} bars. Choose gaps: forward_fill (that ticker is not "
        "traded there) or gaps: drop_day (nothing is)"
    )
    return refusal("gaps", message)
