"""Axes without clutter, and numbers and times on them."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from podracer_client.report.palette import GRID, INK, MUTED

WIDTH_IN = 10.0
_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86_400.0))


def tidy(axes: Axes, *, x: str, y: str = "") -> None:
    """Remove the frame, draw a light grid and write the name of the vertical axis horizontally
    above it."""
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(MUTED)
    axes.tick_params(which="both", length=0, colors=MUTED, labelsize=9)
    axes.set_xlabel(x, color=INK, fontsize=10)
    if y:
        axes.set_title(y, loc="left", color=INK, fontsize=10, pad=10)


def number_ticks(axes: Axes, which: str = "x") -> None:
    """`1,500`, `2.5 M` on an axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))


def logarithmic(axes: Axes, which: str, low: float, high: float) -> None:
    """A logarithmic axis for values from `low` to `high`, with labels at round numbers only."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    number_ticks(axes, which)


def time_unit(span_s: float) -> tuple[str, float]:
    """The most readable unit for a duration, and its length in seconds."""
    found = _UNITS[0]
    for unit in _UNITS:
        if span_s >= 3 * unit[1]:
            found = unit
    return found


def time_ticks(axes: Axes, until_s: float, name: str = "time since the job was created") -> None:
    """Seconds, minutes, hours or days on the horizontal axis."""
    unit, size = time_unit(until_s)
    axes.xaxis.set_major_locator(_Multiples(size))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:,g}"))
    axes.set_xlabel(f"{name}, {unit}", color=INK, fontsize=10)


def number_text(value: float) -> str:
    """A number with thousands separators; `2.5 M` from a million upwards."""
    for suffix, size in (("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{value / size:,g} {suffix}"
    return f"{value:,g}".replace("-", "−") if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


def legend(
    axes: Axes, colors: Mapping[str, str], extra: Mapping[str, Line2D] | None = None
) -> None:
    """Names in their colours above the axes, to the right."""
    lines = {
        name: Line2D([], [], color=color, linewidth=2.5) for name, color in colors.items()
    } | dict(extra or {})
    if not lines:
        return
    axes.legend(
        list(lines.values()),
        list(lines),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(lines),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=1.4,
        columnspacing=1.4,
        borderaxespad=0.3,
    )


class _Multiples(MaxNLocator):
    """Round numbers of a unit rather than of seconds."""

    def __init__(self, unit: float) -> None:
        super().__init__(nbins=8, steps=[1, 2, 2.5, 5, 10])
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        return [
            value * self._unit
            for value in super().tick_values(vmin / self._unit, vmax / self._unit)
        ]
