"""Colours that colour-blind readers can tell apart, and the CSS variables that replace them in a
page.

The series begin with those of Okabe and Ito 2008, Color Universal Design, those of them that are
legible on white."""

from __future__ import annotations

from collections.abc import Iterable

INK = "#1b1e23"
MUTED = "#686e77"
GRID = "#e4e7ea"
PAGE = "#fefefe"
BAD = "#c0272d"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b08600", "#6a51a3", "#7a5c3e")

LIGHT = {"ink": INK, "muted": MUTED, "grid": GRID, "page": PAGE, "bad": BAD} | {
    f"series-{number}": color for number, color in enumerate(SERIES, 1)
}
"""CSS variable → colour in the light theme, in which figures are drawn."""

DARK = {
    **{
        "ink": "#e8eaed",
        "muted": "#9aa1ab",
        "grid": "#31363d",
        "page": "#15181c",
        "bad": "#ff6b6b",
    },
    **{
        f"series-{number}": color
        for number, color in enumerate(
            ("#58a9e0", "#ff8f45", "#34c79a", "#e79bc5", "#dcb838", "#a594e6", "#c49a6c"), 1
        )
    },
}


def series_colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in order of first appearance; after the last colour they repeat."""
    unique = dict.fromkeys(names)
    return {name: SERIES[place % len(SERIES)] for place, name in enumerate(unique)}
