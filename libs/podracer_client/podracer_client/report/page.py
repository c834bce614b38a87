"""The page around sections: one file that asks for nothing else, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from podracer_client.files import make_folder, write_whole
from podracer_client.report.figures.rendering import Rendered, render
from podracer_client.report.html import Content, Markup, element, escape, join
from podracer_client.report.style import style_sheet


@dataclass(frozen=True, slots=True)
class FigurePlan:
    """A figure of a page: a name for its files, what it shows, and how it is drawn (None: there is nothing to draw)."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure | None]


def render_figures(plans: Iterable[FigurePlan], *, png: bool) -> dict[str, Rendered]:
    """The figures that have something to show, by name."""
    found = {}
    for plan in plans:
        rendered = render(plan.name, plan.draw, png=png)
        if rendered is not None:
            found[plan.name] = rendered
    return found


def figure_element(plan: FigurePlan, rendered: Rendered | None) -> Markup:
    """The figure inline with its caption; nothing where there is none."""
    if rendered is None:
        return Markup()
    drawing = Markup(rendered.inline().replace("<svg", f'<svg role="img" aria-label="{escape(plan.title)}"', 1))
    return element("figure", join((drawing, element("figcaption", plan.caption))))


def page(title: str, sections: Iterable[Content]) -> str:
    """A whole document."""
    head = join(
        (
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", title),
            element("style", Markup(style_sheet())),
        )
    )
    body = join(section for section in sections if section)
    return f'<!DOCTYPE html>\n<html lang="en">\n{element("head", head)}\n{element("body", body)}\n</html>\n'


def write_page(path: Path, text: str) -> None:
    """Raises InvalidInput where it cannot be written."""
    write_whole(path, text.encode())


def write_figures(folder: Path, figures: Iterable[Rendered]) -> list[Path]:
    """Every figure as NAME.svg and NAME.png; the folder is made. Raises InvalidInput where that cannot be."""
    make_folder(folder)
    written = []
    for figure in figures:
        for ending, content in ((".svg", figure.svg.encode()), (".png", figure.png)):
            written.append(folder / f"{figure.name}{ending}")
            write_whole(written[-1], content)
    return written
