"""A page and its elements. Text is escaped only here: the input is text, the output a `Markup`.

The colours are ones that colour-blind readers can tell apart, and CSS variables that replace them
in a page. The series begin with those of Okabe and Ito 2008, Color Universal Design, those of them
that are legible on white."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import zip_longest

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


class Markup(str):
    """Finished HTML; every other string is text and is escaped when it is inserted."""

    __slots__ = ()


Content = str | Markup


def escape(content: Content) -> Markup:
    """A Markup unchanged; text with `<`, `&` and quotes escaped."""
    return content if isinstance(content, Markup) else Markup(html.escape(content))


def join(contents: Iterable[Content]) -> Markup:
    """The parts one after the other, one per line."""
    return Markup("\n".join(map(escape, contents)))


def element(name: str, content: Content = "", /, **attributes: str) -> Markup:
    """`<p class="note">…</p>`; an attribute `class_` is `class`, `aria_label` is `aria-label`."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
    ]
    return Markup(f"<{name}{''.join(words)}>{escape(content)}</{name}>")


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Content]],
    *,
    right: Iterable[str] = (),
    long: Iterable[str] = (),
    below: Iterable[Content] = (),
    caption: str = "",
) -> Markup:
    """A table, which scrolls horizontally if it is wider than the page.

    Columns named in `right` are numbers; those in `long` hold sentences, which are broken into
    lines. `below` has a sentence for each row, which stands under it over the whole width."""
    kinds = {**dict.fromkeys(right, "number"), **dict.fromkeys(long, "long")}
    classes = [kinds.get(title, "") for title in titles]
    head = join(_cell("th", title, class_) for title, class_ in zip(titles, classes, strict=True))
    body = []
    for row, sentence in zip_longest(rows, below, fillvalue=""):
        cells = join(_cell("td", text, class_) for text, class_ in zip(row, classes, strict=True))
        body.append(element("tr", cells, class_="above") if sentence else element("tr", cells))
        if sentence:
            body.append(
                element("tr", element("td", sentence, class_="long", colspan=str(len(titles))))
            )
    words = [element("caption", caption)] if caption else []
    inside = join([*words, element("thead", element("tr", head)), element("tbody", join(body))])
    return element("div", element("table", inside), class_="wide")


def definitions(rows: Iterable[tuple[str, Content]]) -> Markup:
    """A list of terms and their descriptions; empty without terms."""
    rows = list(rows)
    if not rows:
        return Markup()
    return element(
        "dl", join(join((element("dt", word), element("dd", value))) for word, value in rows)
    )


def meter(label: str, share: float, text: str) -> Markup:
    """A bar, filled to `share` (0 to 1), with the numbers beside it."""
    width = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    bar = element("span", element("span", "", style=f"width:{width}"), class_="bar")
    return element(
        "div", join((element("span", label), bar, element("span", text))), class_="meter"
    )


def header(title: str, words: str) -> Markup:
    """The title of a page, and a line about it."""
    return element("header", join((element("h1", title), element("p", words, class_="muted"))))


def tiles(contents: Iterable[Iterable[Content]]) -> Markup:
    """The contents of each side by side."""
    return element(
        "div", join(element("div", join(each), class_="tile") for each in contents), class_="tiles"
    )


def section(title: str, *contents: Content) -> Markup:
    """A section of a page; empty if it has no contents."""
    present = [content for content in contents if content]
    if not present:
        return Markup()
    return element(
        "section", join((element("h2", title), *present)), id=title.lower().replace(" ", "-")
    )


def _cell(name: str, text: Content, class_: str) -> Markup:
    return element(name, text, class_=class_) if class_ else element(name, text)


def page(title: str, sections: Iterable[Content]) -> str:
    """A complete document without external resources."""
    head = join(
        (
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", title),
            element("style", Markup(_style_sheet())),
        )
    )
    body = join(section for section in sections if section)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n'
        f"{element('head', head)}\n{element('body', body)}\n</html>\n"
    )


def _style_sheet() -> str:
    """Light, dark and on paper: colours as variables of the two themes, which figures take too."""
    light, dark = (
        ";".join(f"--{name}:{color}" for name, color in theme.items()) for theme in (LIGHT, DARK)
    )
    return (
        f":root{{color-scheme:light dark;{light};--shade:#f3f5f7}}\n"
        f"@media (prefers-color-scheme:dark){{@media "
        f"not print{{:root{{{dark};--shade:#1e2227}}}}}}\n{_RULES}"
    )


_RULES = """\
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:70rem;background:var(--page);
 color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0}
h2{font-size:1.15rem;margin:2.75rem 0 .75rem}
p{margin:.4rem 0;max-width:48rem}
.muted,figcaption,caption,dt,th{color:var(--muted)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;
 margin:1.5rem 0}
.tile{background:var(--shade);border-radius:8px;padding:.7rem .9rem}
.tile strong{display:block;font-size:1.3rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:.85rem;display:block}
.problem{border-left:4px solid var(--bad);background:var(--shade);padding:.6rem 1rem;
 border-radius:4px}
pre{overflow-x:auto;font:12.5px/1.45 ui-monospace,monospace;white-space:pre-wrap;
 overflow-wrap:anywhere}
figure{margin:0 0 2rem}
video{max-width:100%}
figure svg{display:block;width:100%;height:auto}
figure svg *{stroke-linejoin:round;stroke-linecap:butt}
figure svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",
 sans-serif!important}
figcaption,caption{font-size:.87rem;margin:.3rem 0;max-width:52rem;text-align:left}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;min-width:100%}
th,td{text-align:left;vertical-align:top;padding:.32rem .9rem .32rem 0;
 border-bottom:1px solid var(--grid)}
th{font-weight:500;white-space:nowrap}
td{white-space:nowrap}
.above td{border-bottom:0}
td[colspan]{color:var(--muted);padding:0 0 .6rem}
.long{white-space:normal;overflow-wrap:anywhere;min-width:11rem}
.number{text-align:right;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.25rem 1.25rem;margin:0;
 font-size:.93rem}
dd{margin:0;overflow-wrap:anywhere}
.meter{display:grid;grid-template-columns:8.5rem 1fr 16rem;gap:1rem;align-items:center;
 margin:.3rem 0;font-size:.9rem}
.bar{display:block;height:.6rem;border-radius:3px;background:var(--grid);overflow:hidden}
.bar span{display:block;height:100%;background:var(--series-1)}
.mark{display:inline-block;width:.65em;height:.65em;border-radius:2px;margin-right:.45em}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--muted)}
@media (max-width:40rem){.meter{grid-template-columns:1fr}.meter span:last-child{color:var(--muted)}
figure{overflow-x:auto}figure svg{min-width:44rem}}
@media print{body{padding:0;max-width:none;font-size:11px}section,figure,tr{break-inside:avoid}h2{
 break-after:avoid}
.bar,.tile,.problem,.mark{print-color-adjust:exact;-webkit-print-color-adjust:exact}.wide{
 overflow:visible}}
"""
