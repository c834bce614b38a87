"""Times with a zone, as wall-clock times."""

from __future__ import annotations

from typing import Any

from podracer_trading.market_data.columns import refusal, trading_library

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
