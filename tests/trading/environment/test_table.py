"""Price tables: three formats that mean the same, and one clear message for each way of being
wrong."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_trading.environment import StockTrading
from podracer_trading.market_data import checked, read_table
from support.errors import raises
from support.stock_market import Row, market_rows, without, write_csv

ROWS = market_rows(3, 90, seed=11)
TEN_DAYS = ROWS[:30]


def stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def typed(**types: pa.DataType) -> pa.Table:
    """The rows with some columns of other types."""
    table = pa.Table.from_pylist(ROWS)
    for name, kind in types.items():
        column = table.column(name)
        kind_of_text = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        cast = column.cast(pa.timestamp("s")).cast(kind) if kind_of_text else column.cast(kind)
        table = table.set_column(table.column_names.index(name), name, cast)
    return table


@pytest.mark.parametrize(
    "write",
    [
        lambda path: pa.parquet.write_table(typed(), path),
        lambda path: pa.parquet.write_table(
            typed(time=pa.date32(), ticker=pa.dictionary(pa.int32(), pa.string())), path
        ),
        lambda path: pa.feather.write_feather(
            typed(time=pa.timestamp("ns", "UTC")), str(path), compression="lz4"
        ),
        lambda path: stream(
            typed(time=pa.timestamp("ms"), volume=pa.float64(), ticker=pa.large_string()), path
        ),
        lambda path: stream(typed(ticker=pa.string_view(), close=pa.string_view()), path),
    ],
    ids=["parquet of text", "parquet", "arrow file", "arrow stream", "arrow stream of views"],
)
def test_formats_are_equal(tmp_path, write):
    write(tmp_path / "prices")
    expected = read_table(str(write_csv(tmp_path / "prices.csv", ROWS)), {})
    found = read_table(str(tmp_path / "prices"), {})
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert found.ticker[:3].tolist() == ["AAA", "AAB", "AAC"]
    assert str(found.time[0]) == "2015-01-05T00:00:00.000000"


def read_again(path: Path, rows: list[Row]) -> None:
    """The file at `path` gives what the same rows give as plain CSV."""
    expected = read_table(str(write_csv(path.with_name("plain.csv"), rows)), {})
    for one, other in zip(read_table(str(path), {}), expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", ["prices.csv.gz", "prices", "prices.parquet"])
def test_a_file_is_told_by_its_bytes(tmp_path, name):
    """Inside a pod a file has no name that would tell; a wrong one tells nothing either."""
    plain = write_csv(tmp_path / "prices.csv", ROWS).read_bytes()
    for data in (plain, gzip.compress(plain), b"\xef\xbb\xbf" + plain):
        (tmp_path / name).write_bytes(data)
        read_again(tmp_path / name, ROWS)


def test_spaces_around_column_names(tmp_path):
    header, _, rows = write_csv(tmp_path / "prices", ROWS).read_text().partition("\n")
    (tmp_path / "prices").write_text(header.replace(",", ", ") + "\n" + rows)
    read_again(tmp_path / "prices", ROWS)


def test_further_columns_may_be_anything(tmp_path):
    """Names of companies, say, in another encoding."""
    named = write_csv(tmp_path / "prices", [row | {"name": "银行"} for row in ROWS])
    named.write_bytes(named.read_text().encode("gbk"))
    read_again(named, ROWS)


def test_dates_of_eight_digits(tmp_path):
    short = [row | {"time": row["time"].replace("-", "")} for row in ROWS]
    read_again(write_csv(tmp_path / "prices", short), ROWS)
    whole = pa.array([int(row["time"]) for row in short])
    pa.parquet.write_table(typed().set_column(1, "time", whole), tmp_path / "prices")
    read_again(tmp_path / "prices", ROWS)


def at(suffix: str) -> list[Row]:
    return [row | {"time": f"{row['time']}{suffix}"} for row in ROWS]


@pytest.mark.parametrize(
    "suffix", [" 09:30:00Z", "T09:30:00+08:00", " 09:30+0800", " 09:30-05", " 09:30:00.000-05:30"]
)
def test_texts_with_one_offset_keep_what_clocks_showed(tmp_path, suffix):
    read_again(write_csv(tmp_path / "prices", at(suffix)), at(" 09:30"))


def test_one_offset_may_be_written_in_several_ways(tmp_path):
    rows = at(" 09:30+00:00")[:20] + at(" 09:30Z")[20:40] + at(" 09:30:00-0000")[40:]
    read_again(write_csv(tmp_path / "prices", rows), at(" 09:30"))


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (" 00:00-05:00", " 00:00-04:00", "'2015-01-13 00:00-04:00', and '2015-01-05 00:00-05:00' "
                                         "in row 1: the"),
        (" 09:30", " 09:30+08:00", "'2015-01-13 09:30+08:00', and '2015-01-05 09:30' in row 1: the "
                                   "offsets from UTC"),
        (" 09:30Z", "", "'2015-01-13', and '2015-01-05 09:30Z' in row 1: the offsets from UTC must "
                        "all be the same"),
        (" 09:30+08:00", " 09:30+08:0", "'2015-01-13 09:30+08:0'; a date such as"),
        (" 09:30+08:00", " 29:30+08:00", "'2015-01-13 29:30+08:00'; a date such as"),
        (" 09:30+08:00", " 09:30+24:00", "'2015-01-13 09:30+24:00'; a date such as"),
    ],
    ids=["summer time", "some", "a date", "a digit short", "no hour", "no offset"],
)  # fmt: skip
def test_other_offsets_are_refused(tmp_path, first, then, message):
    with raises(
        InvalidInput,
        field="environment.kwargs.table",
        match=re.escape(f"21: 'time' is {message}"),
    ):
        read_table(str(write_csv(tmp_path / "prices", at(first)[:20] + at(then)[20:])), {})


@pytest.mark.parametrize(
    "zone", ["Asia/Shanghai", "America/New_York", "Asia/Kathmandu", "UTC", "+08:00"]
)
@pytest.mark.parametrize("unit", ["s", "ns"])
def test_a_column_with_a_zone_keeps_what_clocks_showed_there(tmp_path, zone, unit):
    """Midnight stays midnight of the same day, before and after the clocks are changed (8 March
    2015 in New York)."""
    assert ROWS[0]["time"] < "2015-03-08" < ROWS[-1]["time"]
    times = typed(time=pa.timestamp(unit)).column("time")
    zoned = pa.chunked_array([pa.compute.assume_timezone(chunk, zone) for chunk in times.chunks])
    assert zoned.type.tz == zone
    pa.parquet.write_table(typed().set_column(1, "time", zoned), tmp_path / "prices")
    read_again(tmp_path / "prices", ROWS)


def test_an_unknown_zone(tmp_path):
    table = typed(time=pa.timestamp("us", "Mars/Olympus"))
    pa.feather.write_feather(table, str(tmp_path / "prices"))
    with raises(InvalidInput, field="environment.kwargs.table", match="'Mars/Olympus'"):
        read_table(str(tmp_path / "prices"), {})


def test_types_that_lose_a_little(tmp_path):
    """Volumes beyond 2^53, and times of nanoseconds, are rounded."""
    nanoseconds = typed(time=pa.timestamp("ns")).column("time").to_numpy() + np.timedelta64(5, "ns")
    volumes = pa.array([2**60 + 1] * len(ROWS))
    table = typed().set_column(1, "time", pa.array(nanoseconds)).set_column(6, "volume", volumes)
    pa.parquet.write_table(table, tmp_path / "prices")
    read_again(tmp_path / "prices", [row | {"volume": 2**60} for row in ROWS])


def test_the_order_of_tickers_does_not_matter(tmp_path):
    """By day, or one ticker after the other; further columns are left alone; tickers of digits keep
    their zeros."""
    by_ticker = sorted(ROWS, key=lambda row: str(row["ticker"]))
    extra = [
        row | {"note": "a,b", "ticker": row["ticker"].replace("AA", "000")} for row in by_ticker
    ]
    renamed = checked(read_table(str(write_csv(tmp_path / "notes.csv", extra)), {}))
    one, other = (
        checked(read_table(str(write_csv(tmp_path / name, rows)), {}))
        for name, rows in (("a.csv", ROWS), ("b.csv", by_ticker))
    )
    assert one.tickers == ("AAA", "AAB", "AAC")
    assert renamed.tickers == ("000A", "000B", "000C")
    for table in (other, renamed):
        assert np.array_equal(one.prices, table.prices)
        assert np.array_equal(one.time, table.time)
    assert one.is_first.nonzero()[0].tolist() == [0, 90, 180]


def test_minutes(tmp_path):
    days = sorted({row["time"] for row in ROWS})
    minute = {
        day: f"2020-03-02 {9 + index // 60:02}:{index % 60:02}" for index, day in enumerate(days)
    }
    table = write_csv(
        tmp_path / "minutes.csv", [row | {"time": minute[row["time"]]} for row in ROWS]
    )
    found = checked(read_table(str(table), {}))
    assert str(found.time[61]) == "2020-03-02T10:01:00.000000"
    options = {"indicators": ["rsi"], "train_end": "2020-03-02T10:00", "random_start": False}
    environment = StockTrading(1, table=table, **options)
    assert environment.market.splits["train"] == range(14, 61)


def change(row: int, **values: Any) -> list[Row]:
    return [one | values if index == row - 1 else one for index, one in enumerate(TEN_DAYS)]


BAD_ROWS = [
    (change(5, close=0), r"row 5 \(AAB, 2015-01-06\): close is 0; a price above 0 is expected"),
    (change(5, open=-3.5), r"row 5 \(AAB, 2015-01-06\): open is -3.5; a price above 0"),
    (change(5, low="nan"), r"row 5 \(AAB, 2015-01-06\): low is nan; a price above 0"),
    (change(5, high="inf"), r"row 5 \(AAB, 2015-01-06\): high is inf; a price above 0"),
    (change(5, high=1), r"row 5 \(AAB, 2015-01-06\): high is 1; not below low \(\d"),
    (change(5, open=TEN_DAYS[4]["high"] * 1.01), r"row 5 .*: open is \S+; not above high \("),
    (change(5, close=TEN_DAYS[4]["low"] * 0.99), r"row 5 .*: close is \S+; not below low \("),
    (change(5, volume=-1), r"row 5 .*: volume is -1; 0 or more is expected"),
    (change(5, close="n/a"), r"row 5: 'close' is 'n/a'; a number is expected"),
    (change(30, volume=" "), r"row 30: 'volume' is empty"),
    (
        change(7, time="05.01.2015"),
        r"row 7: 'time' is '05.01.2015'; a date such as 2019-12-31.* is expected",
    ),
    (change(7, time="2015-02-30"), r"row 7: 'time' is '2015-02-30'; a date"),
    (change(7, ticker=""), r"row 7: 'ticker' is empty"),
    (
        [*TEN_DAYS, TEN_DAYS[3]],
        r"row 31 \(AAA, 2015-01-06\) is there twice: row 4 has the same ticker and time",
    ),
    (
        TEN_DAYS[3:] + TEN_DAYS[:3],
        r"row 28 \(AAA, 2015-01-05\) comes after that ticker's 2015-01-16 \(row 25\); sort",
    ),
    (
        TEN_DAYS,
        r"AAA has 10 bars; its indicators need 34 at least: leave it out, or choose shorter "
        r"windows",
    ),
    ([], r"has no rows"),
]


@pytest.mark.parametrize(
    ("rows", "complaint"), BAD_ROWS, ids=[complaint for _, complaint in BAD_ROWS]
)
def test_bad_rows(tmp_path, rows, complaint):
    table = write_csv(tmp_path / "prices.csv", rows)
    with raises(InvalidInput, field="environment.kwargs.table", match=complaint):
        StockTrading(1, table=table)


def test_prices_that_went_through_float32_are_taken(tmp_path):
    rows = [row | {"high": float(np.float32(row["high"])), "open": row["high"]} for row in ROWS]
    checked(read_table(str(write_csv(tmp_path / "prices.csv", rows)), {}))


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda path: None, r"cannot read the table .*prices: No such file"),
        (lambda path: path.mkdir(), r"cannot read the table .*prices: Is a directory"),
        (
            lambda path: path.write_bytes(b""),
            r"is not a table in CSV .*Parquet or Arrow: Empty CSV file",
        ),
        (lambda path: path.write_bytes(b"PAR1 and no more"), r"is not a table in CSV"),
        (lambda path: path.write_bytes(b"ARROW1 and no more"), r"is not a table in CSV"),
        (lambda path: path.write_bytes(b"\xff\xff\xff\xff\x10"), r"is not a table in CSV"),
        (
            lambda path: path.write_bytes(b"PK\x03\x04\x00\x00 an Excel file"),
            r"has no column 'ticker'|is not a table in CSV",
        ),
        (
            lambda path: path.write_bytes(b"ticker,time\nAAA,1\nAAA\n"),
            r"Row #3: Expected 2 columns, got 1",
        ),
        (lambda path: path.write_bytes(b"ticker,time\n\xff\xfe,1\n"), r"is not a table in CSV"),
        (
            lambda path: path.write_bytes("名称,time\n1,1\n".encode("gbk")),
            r"is not a table in CSV \(UTF-8",
        ),
        (
            lambda path: path.write_bytes("ticker,time\n1,1\n".encode("utf-16")),
            r"is not a table in CSV \(UTF-8",
        ),
        (lambda path: path.write_bytes(b"ticker;time\nA;1\n"), r"separated by commas, not by ';'"),
        (
            lambda path: path.write_bytes(b"\x1f\x8b and no more"),
            r"cannot read the table|is not a table in CSV",
        ),
        (
            lambda path: path.write_bytes(b"ticker,time,open,high,low,close,close,volume\n"),
            r"has more than one column 'close'",
        ),
    ],
)
def test_bad_files(tmp_path, write, complaint):
    write(tmp_path / "prices")
    with pytest.raises(InvalidInput, match=complaint):
        StockTrading(1, table=str(tmp_path / "prices"))


def test_a_parquet_of_other_types(tmp_path):
    table = typed().set_column(1, "time", pa.array(range(len(ROWS))))
    pa.parquet.write_table(table, tmp_path / "prices")
    with raises(InvalidInput, field="environment.kwargs.table", match="row 1: 'time'"):
        StockTrading(1, table=tmp_path / "prices")
    table = typed().set_column(1, "time", pa.array([0.5] * len(ROWS)))
    pa.parquet.write_table(table, tmp_path / "prices")
    with raises(InvalidInput, field="environment.kwargs.table", match="double; dates"):
        StockTrading(1, table=tmp_path / "prices")


def test_missing_columns(tmp_path):
    names = {"ticker": "tic", "time": "Date", "volume": "Vol"}
    rows = [{names.get(name, name): value for name, value in row.items()} for row in ROWS]
    table = write_csv(tmp_path / "prices.csv", rows)
    with pytest.raises(InvalidInput) as caught:
        StockTrading(1, table=table)
    assert (
        "no column 'ticker', 'time', 'volume'; it has tic, Date, open, high, low, close, Vol"
        in caught.value.message
    )
    assert "columns: {ticker: tic, time: Date, volume: Vol}" in caught.value.message
    assert caught.value.violations[0].field == "environment.kwargs.columns"
    assert StockTrading(1, table=table, columns=names, indicators=["rsi"]).market.tickers == (
        "AAA",
        "AAB",
        "AAC",
    )
    with raises(InvalidInput, field="environment.kwargs.columns"):
        StockTrading(1, table=table, columns=names | {"volume": "turnover"})


@pytest.mark.parametrize(
    ("options", "field", "complaint"),
    [
        ({}, "table", "is missing"),
        ({"tabel": "x"}, "tabel", "unknown key; did you mean table?"),
        ({"adjust": "atuo"}, "adjust", "expected auto or none, got 'atuo'"),
        ({"gaps": "ffill"}, "gaps", "expected forward_fill or drop_day or error, got 'ffill'"),
        ({"fill": "open"}, "fill", "expected next_open or same_close"),
        ({"split": "testing"}, "split", "expected train or validation or test or all"),
        ({"indicators": ["rsi", "obv"]}, "indicators[1]", "expected macd or rsi or cci"),
        ({"indicators": ["rsi", "rsi"]}, "indicators", "names one twice"),
        ({"columns": {"tic": "ticker"}}, "columns", "has 'tic'; its keys are among ticker, time"),
        ({"buy_cost": -0.1}, "buy_cost", "0 or more and below 1, not -0.1"),
        ({"sell_cost": 1}, "sell_cost", "0 or more and below 1, not 1"),
        ({"initial_cash": 0}, "initial_cash", "must be above 0, not 0"),
        ({"max_stock": 0}, "max_stock", "must be 1 or more, not 0"),
        ({"max_stock": 1.5}, "max_stock", "expected a whole number, got 1.5"),
        ({"cool_down": -1}, "cool_down", "must be 0 or more"),
        ({"cool_down": 10**12}, "cool_down", "must be 1,000,000,000 or less"),
        ({"max_stock": 10**30}, "max_stock", "must be 1,000,000,000,000 or less"),
        ({"minimum_trade": 101}, "minimum_trade", "of 101 shares is more than max_stock (100)"),
        ({"daily_limit": 10}, "daily_limit", "a fraction between 0 and 1 (0.1 for 10 %), not 10"),
        ({"rsi_window": 1}, "rsi_window", "must be 2 or more, not 1"),
        ({"cci_window": 100_001}, "cci_window", "must be 100,000 or less, not 100001"),
        ({"turbulence_threshold": 0}, "turbulence_threshold", "must be above 0"),
        (
            {"train_fraction": 0.9, "validation_fraction": 0.2},
            "validation_fraction",
            "together are 1.1, more than 1",
        ),
        ({"validation_end": "2016-01-01"}, "validation_end", "needs train_end beside it"),
    ],
)
def test_bad_options(options, field, complaint):
    with pytest.raises(InvalidInput) as caught:
        StockTrading(1, **({"table": "x"} if field not in ("table", "tabel") else {}), **options)
    violation = next(
        each for each in caught.value.violations if each.field == f"environment.kwargs.{field}"
    )
    assert complaint in violation.message
    assert complaint in caught.value.message


@pytest.mark.parametrize(
    ("options", "field", "complaint"),
    [
        ({"train_end": "March 2015"}, "train_end", r"'March 2015'; a date such as 2018-12-31"),
        ({"train_end": "today"}, "train_end", r"'today'; a date such as 2018-12-31"),
        ({"train_end": "20150331"}, "train_end", r"'20150331'; a date such as 2018-12-31"),
        ({"train_end": "2015-02-30"}, "train_end", r"'2015-02-30'; a date such as 2018-12-31"),
        (
            {"train_end": "2015-03-31T10:00+08:00"},
            "train_end",
            r"\+08:00'; a date such as 2018-12-31",
        ),
        (
            {"train_end": "2015-04-01", "validation_end": "2015-03-31"},
            "validation_end",
            r"is 2015-03-31, before train_end \(2015-04-01\)",
        ),
        (
            {"train_end": "2014-12-31"},
            "train_end",
            r"train split has 0 bars.* usable bars run from 2015-02-19 to 2015-05-08",
        ),
        (
            {"train_end": "2019-12-31"},
            "train_end",
            r"the validation split has 0 bars and needs two",
        ),
        ({"train_end": "2015-03-31", "split": "test"}, "train_end", r"the test split has 0 bars"),
        (
            {"train_end": "2015-03-31", "validation_end": "2016-03-31", "evaluation_split": "test"},
            "validation_end",
            r"the test split has 0 bars",
        ),
        (
            {"validation_fraction": 0, "evaluation_split": "validation"},
            "validation_fraction",
            r"the validation split has 0 bars",
        ),
        (
            {"indicators": ["turbulence"]},
            "table",
            r"90 bars, too few for the indicators, which need 1 for the close, 254 for turbulence",
        ),
    ],
)
def test_bad_splits(tmp_path, options, field, complaint):
    table = write_csv(tmp_path / "prices.csv", ROWS)
    with raises(InvalidInput, field=f"environment.kwargs.{field}", match=complaint):
        StockTrading(1, table=table, **{"indicators": ["macd"], **options})


def test_a_ticker_that_training_never_sees(tmp_path):
    days = sorted({row["time"] for row in ROWS})
    table = write_csv(tmp_path / "prices.csv", without(ROWS, {"AAB": days[:65]}))
    with raises(InvalidInput, field="environment.kwargs.table", match="known indicators"):
        StockTrading(1, table=table, gaps="forward_fill", indicators=["rsi"], train_end=days[60])


@pytest.mark.parametrize("module", ["pyarrow", "talib"])
def test_without_the_extra(tmp_path, monkeypatch, module):
    table = write_csv(tmp_path / "prices.csv", ROWS)
    monkeypatch.setitem(sys.modules, module, None)
    with raises(PreconditionFailed, "EXTRA_NOT_INSTALLED", match=module):
        StockTrading(1, table=table, indicators=["rsi"])
