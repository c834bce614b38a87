"""What `podracer data` prints of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from podracer_client.display.output import columns

if TYPE_CHECKING:
    from podracer_core.market_data.inspection import Inspection

__all__ = ["inspection_text", "length_text"]

_SHOWN = 50
_UNITS = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))


def inspection_text(inspection: Inspection, adjust: str) -> str:
    """A table of the tickers and one of each thing that is remarkable."""
    from podracer_core.market_data.inspection import JUMP_RULE, SPLIT_RULE
    from podracer_core.market_data.table import moment

    stretch = f"from {inspection.first} to {inspection.last}, a bar is {length_text(inspection.bar_length_s)}"
    head = f"{len(inspection.tickers)} tickers, {inspection.rows:,} rows, {inspection.bars:,} bars {stretch}"
    numbers = ("bars", "missing", "gaps", "no volume")
    rows = [
        (each.ticker, f"{each.bars:,}", f"{each.missing:,}", f"{each.gaps:,}", f"{each.no_volume:,}")
        for each in inspection.tickers
    ]
    parts = [head, columns(("ticker", *numbers), rows, right=numbers)]
    done = "smoothed" if adjust == "auto" else "left as they are"
    dates = [
        (each.ticker, moment(each.time), f"{each.move:+.1%}", f"{each.factor:.4f}") for each in inspection.ex_rights
    ]
    parts += _part(f"ex-rights dates, {done}", ("ticker", "date", "fall", "factor"), dates)
    splits = [(each.ticker, each.time, _split_text(each.shares)) for each in inspection.splits]
    parts += _part(f"probable splits ({SPLIT_RULE})", ("ticker", "time", "shares"), splits)
    jumps = [(each.ticker, each.time, f"{each.move:+.1%}", f"{each.score:+.1f}") for each in inspection.jumps]
    parts += _part(f"suspicious jumps ({JUMP_RULE})", ("ticker", "time", "move", "deviations"), jumps)
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
