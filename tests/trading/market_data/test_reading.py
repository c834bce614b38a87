"""Tables that are longer than what is read at once."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from podracer_core.errors import InvalidInput
from podracer_trading.market_data import read_table

ROWS = 60_000  # 2.6 MB: several pieces
BAD = 55_000


def lines(**changes: str) -> bytes:
    """Two tickers, of which one has its first row in the last piece; one row may be changed."""
    rows = ["other,ticker,time,open,high,low,close,volume"]
    for row in range(1, ROWS + 1):
        cells = {
            "ticker": "000001" if row < ROWS - 5 else "B",
            "time": "2020-01-05 09:30",
            "open": f"{row}",
        }
        cells |= {"high": f"{row}", "low": f"{row}", "close": f"{row}", "volume": "1"}
        if row == BAD:
            cells |= changes
        rows.append(",".join(["x", *cells.values()]))
    return "\n".join(rows).encode()


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_pieces_make_the_whole(tmp_path, compress):
    path = tmp_path / "prices.csv"
    path.write_bytes(compress(lines()))  # type: ignore[operator]
    table = read_table(str(path), {})
    np.testing.assert_array_equal(table.prices[:, 3], np.arange(1, ROWS + 1))
    assert (table.ticker[0], table.ticker[-7], table.ticker[-6], table.ticker[-1]) == (
        "000001",
        "000001",
        "B",
        "B",
    )
    assert (table.time == np.datetime64("2020-01-05T09:30")).all()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"close": "many"}, rf"row {BAD}: 'close' is 'many'; a number is expected"),
        ({"volume": ""}, rf"row {BAD}: 'volume' is empty"),
        ({"ticker": " "}, rf"row {BAD}: 'ticker' is empty"),
        ({"time": "today"}, rf"row {BAD}: 'time' is 'today'; a date"),
        ({"time": "2020-01-05 09:30Z"}, rf"row {BAD}: 'time' is '2020-01-05 09:30Z'"),
    ],
)
def test_a_bad_cell_is_named_by_its_row_of_the_file(tmp_path, changes, told):
    path = tmp_path / "prices.csv"
    path.write_bytes(lines(**changes))
    with pytest.raises(InvalidInput, match=told):
        read_table(str(path), {})
