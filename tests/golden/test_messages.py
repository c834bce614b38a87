"""Every text with a space in it in the source of the product, and the error that it is given to."""

from __future__ import annotations

import ast
import builtins
import re
from typing import NamedTuple

from support.golden import check_golden
from support.processes import ROOT

GIVEN_TO = {
    "FieldViolation",
    "BadParameter",
    "Exception",
    *(name for name in vars(builtins) if name.endswith("Error")),
}
TEXTLESS = (ast.Name, ast.expr_context, ast.operator)
MOST_LINES = 4
"""Texts with more lines are pages and programs, not messages."""


def placeholder(node: ast.expr) -> str:
    """Without modules, objects and underscores, which change when code moves."""
    return re.sub(r"\b[A-Za-z_]\w*\.(?=[A-Za-z_])|\b_(?=[A-Za-z])", "", ast.unparse(node))


def text_of(node: ast.AST) -> str | None:
    """The text that an expression is, with placeholders; None for other expressions."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(map(piece, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [(text_of(side), side) for side in (node.left, node.right)]
        if any(text is not None for text, _ in sides):
            return "".join(
                f"{{{placeholder(side)}}}" if text is None else text for text, side in sides
            )
    return None


def piece(part: ast.expr) -> str:
    """A part of an f-string."""
    if not isinstance(part, ast.FormattedValue):
        return text_of(part) or ""
    form = f"!{chr(part.conversion)}" if part.conversion > 0 else ""
    form += f":{text_of(part.format_spec)}" if part.format_spec else ""
    return f"{{{placeholder(part.value)}{form}}}"


class Source(NamedTuple):
    """Texts with the calls that they are arguments of, outermost first; the bases of classes."""

    texts: set[tuple[str, tuple[str, ...]]]
    bases: dict[str, set[str]]

    def read(self, node: ast.AST, calls: tuple[str, ...] = ()) -> None:
        """All but docstrings."""
        text = text_of(node)
        if text is not None:
            self.texts.add((text, calls))
            return
        if isinstance(node, ast.Call):
            calls += tuple(re.findall(r"\w+", ast.unparse(node.func)))[
                -2:
            ]  # InvalidInput or InvalidInput.of
        elif isinstance(node, ast.ClassDef):
            self.bases.setdefault(node.name, set()).update(map(ast.unparse, node.bases))
        for child in ast.iter_child_nodes(node):
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not docstring and not isinstance(child, TEXTLESS):
                self.read(child, calls)

    def errors(self) -> set[str]:
        """The classes of errors, ours and others'."""
        found = GIVEN_TO
        while more := {name for name, bases in self.bases.items() if bases & found} - found:
            found = found | more
        return found


def test_messages():
    source = Source(set(), {})
    for path in (path for top in ("libs", "services") for path in (ROOT / top).rglob("*.py")):
        if "_pb2" not in path.name:
            source.read(ast.parse(path.read_text(encoding="utf-8")))
    errors = source.errors()
    lines = set()
    for text, calls in source.texts:
        if " " in text.strip() and text.count("\n") < MOST_LINES:
            error = next((f"  [{name}]" for name in reversed(calls) if name in errors), "")
            lines.add(
                text.strip()
                .encode("unicode_escape" if not text.isprintable() else "utf-8")
                .decode()
                + error
            )
    check_golden("messages.txt", "\n".join(sorted(lines)) + "\n")
