"""Rendered figures, as SVG (a file, or inline in a page) and as PNG; the same data give the same
bytes. Axes without clutter, and numbers and times on them."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from podracer_client.files import make_folder, write_whole
from podracer_client.report.html import GRID, INK, LIGHT, MUTED, PAGE, Markup, element, escape, join

_PNG_DPI = 144
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same widths everywhere
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a `$` in a name is a dollar
    "axes.facecolor": "none",
    "figure.facecolor": PAGE,
    "svg.fonttype": "none",
    "path.simplify": True,
}
_NO_METADATA: dict[str, Any] = {"Creator": None, "Date": None, "Format": None, "Type": None}
_IDENTIFIER = re.compile(r'(\bid="|url\(#|href="#)')
_COLOR = re.compile("|".join(LIGHT.values()))
_VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A figure; `png` is empty if it was not requested."""

    name: str
    svg: str
    png: bytes = b""

    def inline(self) -> str:
        """The SVG for a page: without prologue and namespaces, with the page's colours and
        width."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2).replace("xlink:href", "href")
        # it says `*`
        svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
        svg = re.sub(r' (width|height)="[^"]*"', "", svg, count=2)
        return _COLOR.sub(lambda match: _VARIABLES[match[0]], svg).strip()


def render(name: str, draw: Callable[[], Figure | None], *, png: bool = False) -> Rendered | None:
    """Draw and export the figure; None if there is nothing to draw. `name` makes its identifiers
    unique."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # in an SVG the viewer's fonts have it
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = draw()
        if figure is None:
            return None
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=_NO_METADATA)
        image = io.BytesIO()
        if png:
            figure.set_layout_engine("none")  # it is laid out
            figure.savefig(image, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    svg = _IDENTIFIER.sub(lambda match: f"{match[0]}{name}-", text.getvalue())
    return Rendered(name, svg, image.getvalue())


@dataclass(frozen=True, slots=True)
class FigurePlan:
    """A figure of a page: a name for its files, its caption, and the function that draws it (None:
    nothing to draw)."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure | None]


def render_figures(plans: Iterable[FigurePlan], *, png: bool) -> dict[str, Rendered]:
    """The figures with content, by name."""
    found = {}
    for plan in plans:
        rendered = render(plan.name, plan.draw, png=png)
        if rendered is not None:
            found[plan.name] = rendered
    return found


def figure_element(plan: FigurePlan, rendered: Rendered | None) -> Markup:
    """The figure inline with its caption; empty if it does not exist."""
    if rendered is None:
        return Markup()
    drawing = Markup(
        rendered.inline().replace("<svg", f'<svg role="img" aria-label="{escape(plan.title)}"', 1)
    )
    return element("figure", join((drawing, element("figcaption", plan.caption))))


def write_figures(folder: Path, figures: Iterable[Rendered]) -> list[Path]:
    """Every figure as NAME.svg and NAME.png; the folder is created. Raises InvalidInput if that
    fails."""
    make_folder(folder)
    written = []
    for figure in figures:
        for ending, content in ((".svg", figure.svg.encode()), (".png", figure.png)):
            written.append(folder / f"{figure.name}{ending}")
            write_whole(written[-1], content)
    return written


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
