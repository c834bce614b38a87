"""Aligned columns of text, the same on a terminal and in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


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


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
