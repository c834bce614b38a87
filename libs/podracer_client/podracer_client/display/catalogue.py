"""How the lists of what there is (algorithms, environments) are shown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """On stdout: folded to the width of a terminal, the first column never; a line a row in a pipe."""
    if not sys.stdout.isatty():
        from podracer_client.display.listing import columns

        sys.stdout.write(columns(titles, rows) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, title in enumerate(titles):
        table.add_column(title, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, markup=False, emoji=False, highlight=False).print(table)


def value_text(value: object) -> str:
    """As it is written in a job file."""
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
