"""Output on stdout: aligned columns of text, tables, and JSON objects, one per line."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from podracer_core.telemetry.logging import printable

__all__ = ["columns", "write_json", "write_table"]


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A table; the columns whose titles are in `right` are aligned to the right."""
    table = [list(titles), *[list(row) for row in rows]]
    widths = [max(_width(row[index]) for row in table) for index in range(len(titles))]
    lines = []
    for row in table:
        cells = []
        for title, text, width in zip(titles, row, widths, strict=True):
            space = " " * (width - _width(text))
            cells.append(space + text if title in right else text + space)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table on stdout: wrapped at the width of a terminal, except the first column; one
    line per row in a pipe."""
    if not sys.stdout.isatty():
        sys.stdout.write(columns(titles, rows) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, title in enumerate(titles):
        table.add_column(title, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    Console(file=sys.stdout, markup=False, emoji=False, highlight=False).print(table)


def write_json(values: Mapping[str, Any], out: TextIO | None = None) -> None:
    """Write one object as a line on stdout or `out`."""
    out = sys.stdout if out is None else out
    out.write(json.dumps(values, ensure_ascii=False) + "\n")
    out.flush()


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
