"""Rendered figures, as SVG (a file, or inline in a page) and as PNG; the same data give the same
bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from podracer_client.files import make_folder, write_whole
from podracer_client.report.html import Markup, element, escape, join
from podracer_client.report.palette import INK, LIGHT, PAGE

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
