"""Output on stdout: numbers as text, aligned columns, tables, and JSON objects, one per line."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from podracer_core.catalogue import HyperparameterValue
from podracer_core.errors import InvalidInput
from podracer_platform.telemetry import printable

if TYPE_CHECKING:
    from podracer.common.v1 import agent_pb2


def count_text(value: float) -> str:
    """`1,234`, from a million on `1.23 M`."""
    if abs(value) < 1e6:
        return f"{value:,.0f}"
    for unit, size in (("M", 1e6), ("G", 1e9)):
        if abs(value) < 1000 * size or unit == "G":
            return f"{value / size:,.2f} {unit}"
    raise AssertionError("the last unit takes everything")


def return_text(value: float | None) -> str:
    """A return with the digits that matter; `–` for none."""
    if value is None:
        return "–"
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 10_000 else f"{value:,.0f}"


def duration_text(value: float | None) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`; `–` for none."""
    if value is None:
        return "–"
    if round(value, 1) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def evaluation_text(evaluation: agent_pb2.Evaluation) -> str:
    """An evaluation's mean, interval and episodes, and those that broke or were cut; a single
    episode has an interval only of its own statistic."""
    broken = evaluation.broken_number_episodes + evaluation.broken_code_episodes
    count, cut = len(evaluation.returns), evaluation.cut_episodes
    if broken and not count:
        return f"none: all of {broken} episodes broke"
    inside = "1 episode" if count == 1 else f"{count} episodes"
    if count != 1 or evaluation.deterministic:
        inside = (
            f"95 % interval {interval_text(evaluation.lower_bound, evaluation.upper_bound)}, "
            f"{inside}"
        )
    inside += (
        f", {cut} of them cut after {max(evaluation.lengths, default=0):,} steps" if cut else ""
    )
    inside += f"; {broken} more broke" if broken else ""
    return f"{return_text(evaluation.mean)} ({inside})"


def interval_text(lower: float | None, upper: float | None) -> str:
    """`-201.3 to -163.5`."""
    return f"{return_text(lower)} to {return_text(upper)}"


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


Hyperparameters = Mapping[str, HyperparameterValue]


def value_text(value: object) -> str:
    """A value as it is written in a job file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case float() if not math.isfinite(value):
            return f"{value:g}".replace("inf", ".inf").replace("nan", ".nan")
        case float():
            return f"{int(value):_}" if value.is_integer() else f"{value:g}"
        case tuple() | list():
            return f"[{', '.join(map(value_text, value))}]"
        case str() if value:
            return value
        case _:
            return json.dumps(value)


def telling_names(agents: Iterable[tuple[str, Hyperparameters]]) -> dict[str, tuple[str, ...]]:
    """Names by algorithm: those that differ between its agents, then those that differ from their
    defaults."""
    groups: dict[str, list[Hyperparameters]] = {}
    for algorithm, values in agents:
        groups.setdefault(algorithm, []).append(values)
    return {
        algorithm: (*_differing(group), *_unusual(algorithm, group))
        for algorithm, group in groups.items()
    }


def differing_names(agents: Iterable[tuple[str, Hyperparameters]]) -> tuple[str, ...]:
    """Names that differ between agents of one algorithm, of all algorithms together; sorted."""
    groups: dict[str, list[Hyperparameters]] = {}
    for algorithm, values in agents:
        groups.setdefault(algorithm, []).append(values)
    return tuple(sorted({name for group in groups.values() for name in _differing(group)}))


def hyperparameter_text(value: HyperparameterValue) -> str:
    """A value as in a job file, real numbers with four digits."""
    return value_text(float(f"{value:.4g}") if isinstance(value, float) else value)


def hyperparameters_text(values: Hyperparameters, names: Iterable[str] | None = None) -> str:
    """`learning_rate 0.00031, gamma 0.98`; only `names`, in their order, where given."""
    chosen = sorted(values) if names is None else [name for name in names if name in values]
    return ", ".join(f"{name} {hyperparameter_text(values[name])}" for name in chosen)


def _differing(group: list[Hyperparameters]) -> list[str]:
    names = sorted({name for values in group for name in values})
    return [name for name in names if len({values.get(name) for values in group}) > 1]


def _unusual(algorithm: str, group: list[Hyperparameters]) -> list[str]:
    """Names with one value in the whole group, not the default; none if the algorithm is not
    installed here."""
    # late: the help of the commands needs none
    from podracer_core.catalogue import find_algorithm

    try:
        defaults = find_algorithm(algorithm).defaults()
    except InvalidInput:
        return []
    differing = set(_differing(group))
    first = group[0]
    return [
        name
        for name in sorted(first)
        if name not in differing and first[name] != defaults.get(name, first[name])
    ]
