"""What every benchmark ends with: a table for people and one JSON line for programs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A figure and what it has to reach; `at_most` where smaller is better. None was not measured,
    and is not met."""

    value: float | None
    target: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.target if self.at_most else self.value >= self.target


def versions(*packages: str) -> str:
    """One line: machine, Python and the versions of `packages`."""
    found = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"{', '.join(found)}"
    )


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table; floats are shown with three significant digits or thousands separators."""
    cells = [[number_text(cell) for cell in row] for row in rows]
    widths = [
        max(len(line[column]) for line in [list(header), *cells]) for column in range(len(header))
    ]
    print(f"\n{title}")
    for line in [list(header), ["-" * width for width in widths], *cells]:
        first, *others = zip(line, widths, strict=True)
        print(
            "  "
            + "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])
        )


def spread(values: Iterable[float | None]) -> str:
    """`median (least – greatest)` of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    middle, least, greatest = statistics.median(known), min(known), max(known)
    return f"{number_text(middle)} ({number_text(least)} – {number_text(greatest)})"


def finish(name: str, figures: Mapping[str, object], targets: Mapping[str, Target]) -> None:
    """Print what was reached and the closing JSON line."""
    rows = []
    for key, each in targets.items():
        value = "not measured" if each.value is None else each.value
        met = "–" if each.value is None else "yes" if each.met else "NO"
        rows.append([key, value, f"{'≤' if each.at_most else '≥'} {number_text(each.target)}", met])
    print_table("Targets", ["target", "value", "to reach", "met"], rows)
    closing = {
        "benchmark": name,
        "figures": dict(figures),
        "targets": {
            key: {"value": t.value, "target": t.target, "met": t.met} for key, t in targets.items()
        },
    }
    print(json.dumps(closing))


def number_text(cell: object) -> str:
    """A cell of a table: three significant digits, or thousands separators."""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
