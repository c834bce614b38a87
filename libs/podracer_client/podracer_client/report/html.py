"""Elements of a page. Text is escaped here and nowhere else: what comes out is a `Markup`, what goes in is text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import zip_longest


class Markup(str):
    """HTML that is finished; every other string is text, and is escaped where it is put into one."""

    __slots__ = ()


Content = str | Markup


def escape(content: Content) -> Markup:
    """A Markup as it is, text with `<`, `&` and quotes escaped."""
    return content if isinstance(content, Markup) else Markup(html.escape(content))


def join(contents: Iterable[Content]) -> Markup:
    """One after the other, a line each."""
    return Markup("\n".join(map(escape, contents)))


def element(name: str, content: Content = "", /, **attributes: str) -> Markup:
    """`<p class="note">…</p>`; an attribute `class_` is `class`, `aria_label` is `aria-label`."""
    words = [f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items()]
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
    """A table that scrolls by itself where it is wider than the page.

    Columns named in `right` are numbers; those in `long` hold sentences, which are broken into lines. `below` has a
    sentence for each row, which stands under it over the whole width.
    """
    kinds = {**dict.fromkeys(right, "number"), **dict.fromkeys(long, "long")}
    classes = [kinds.get(title, "") for title in titles]
    head = join(_cell("th", title, class_) for title, class_ in zip(titles, classes, strict=True))
    body = []
    for row, sentence in zip_longest(rows, below, fillvalue=""):
        cells = join(_cell("td", text, class_) for text, class_ in zip(row, classes, strict=True))
        body.append(element("tr", cells, class_="above") if sentence else element("tr", cells))
        if sentence:
            body.append(element("tr", element("td", sentence, class_="long", colspan=str(len(titles)))))
    words = [element("caption", caption)] if caption else []
    inside = join([*words, element("thead", element("tr", head)), element("tbody", join(body))])
    return element("div", element("table", inside), class_="wide")


def definitions(rows: Iterable[tuple[str, Content]]) -> Markup:
    """Words and what is to be said of them; nothing for none."""
    rows = list(rows)
    if not rows:
        return Markup()
    return element("dl", join(join((element("dt", word), element("dd", value))) for word, value in rows))


def meter(label: str, share: float, text: str) -> Markup:
    """A bar that is filled up to `share` (0 to 1), with the figures beside it."""
    width = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    bar = element("span", element("span", "", style=f"width:{width}"), class_="bar")
    return element("div", join((element("span", label), bar, element("span", text))), class_="meter")


def section(title: str, *contents: Content) -> Markup:
    """A part of a page; nothing where it has no contents."""
    present = [content for content in contents if content]
    if not present:
        return Markup()
    return element("section", join((element("h2", title), *present)), id=title.lower().replace(" ", "-"))


def _cell(name: str, text: Content, class_: str) -> Markup:
    return element(name, text, class_=class_) if class_ else element(name, text)
