"""What every benchmark ends with: a table for people and one JSON line for programs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A figure and what it has to reach; `at_most` where smaller is better."""

    value: float
    target: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


def versions(*packages: str) -> str:
    """One line: machine, Python and the versions of `packages`."""
    found = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {', '.join(found)}"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table; floats are shown with three significant digits or thousands separators."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *cells]) for column in range(len(header))]
    print(f"\n{title}")
    for line in [list(header), ["-" * width for width in widths], *cells]:
        first, *others = zip(line, widths, strict=True)
        print("  " + "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]))


def spread(values: Sequence[float]) -> str:
    """`median (least – greatest)`."""
    return f"{_text(statistics.median(values))} ({_text(min(values))} – {_text(max(values))})"


def finish(name: str, figures: Mapping[str, object], targets: Mapping[str, Target]) -> None:
    """Print what was reached and the closing JSON line."""
    print_table(
        "Targets",
        ["target", "value", "to reach", "met"],
        [
            [key, t.value, f"{'≤' if t.at_most else '≥'} {_text(t.target)}", "yes" if t.met else "NO"]
            for key, t in targets.items()
        ],
    )
    closing = {
        "benchmark": name,
        "figures": dict(figures),
        "targets": {key: {"value": t.value, "target": t.target, "met": t.met} for key, t in targets.items()},
    }
    print(json.dumps(closing))


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
