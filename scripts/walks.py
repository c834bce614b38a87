"""Reads `walks.toml`: the functions that a thing passes through, each checked against the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

COUNTED = ("hops", "conversions", "files")
GAPS = ("column", "thread", "graph")
"""What no call leads through: a stored column or field, another thread, a CUDA graph."""
_GAP = re.compile(rf"\(({'|'.join(GAPS)}): .+\)")
_LINE = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)(?: = (?P<made>.+))?")


def measure_walks(
    path: Path, trees: Mapping[str, ast.Module]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Each walk's figures by its name, its limits as `most_…`; and what is broken, in words.

    Raises ValueError for a line of another form.
    """
    figures: dict[str, dict[str, int]] = {}
    broken: list[str] = []
    for walk in tomllib.loads(path.read_text(encoding="utf-8"))["walk"] if path.exists() else []:
        counts = _follow(walk["name"], walk["path"], trees, broken)
        figures[walk["name"]] = counts | {
            f"most_{what}": most for what, most in walk["limits"].items()
        }
    return figures, broken


def over_limits(walks: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is more than it should be, in words."""
    each = [
        (name, what, walk[what], walk.get(f"most_{what}"))
        for name, walk in walks.items()
        for what in COUNTED
    ]
    return [
        f"{name}: {count} {what}, at most {most}"
        for name, what, count, most in each
        if most and count > most
    ]


def _follow(
    walk: str, path: str, trees: Mapping[str, ast.Module], broken: list[str]
) -> dict[str, int]:
    """The walk's counts. A function that comes again, as the others return to it, counts once."""
    hops, conversions = dict[tuple[str, str], None](), set[str]()
    before: ast.AST | None = None
    for line in path.strip().splitlines():
        if line.startswith("("):
            if _GAP.fullmatch(line) is None:
                raise ValueError(f"{walk}: expected `({'|'.join(GAPS)}: …)`, got {line!r}")
            before = None
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{walk}: expected `module:name`, got {line!r}")
        module, name = match["module"], match["name"]
        found = _find(trees.get(module), name)
        if found is None:
            broken.append(f"{walk}: there is no {module}:{name}")
        elif before is not None and not (_calls(before, found) or _calls(found, before)):
            broken.append(f"{walk}: {module}:{name} neither calls nor is called by the line before")
        before = found
        hops[module, name] = None
        if match["made"]:
            conversions.add(match["made"])
    return {
        "hops": len(hops),
        "conversions": len(conversions),
        "files": len({module for module, _ in hops}),
    }


def _find(tree: ast.AST | None, qualified: str) -> ast.AST | None:
    """The function or class of that name."""
    for part in qualified.split("."):
        found = [each for each in getattr(tree, "body", []) if getattr(each, "name", None) == part]
        tree = found[0] if found else None
    return tree


def _calls(caller: ast.AST, called: ast.AST) -> bool:
    """Whether the body calls something of that name, hands it on, or reads it as a property."""
    name = called.name  # type: ignore[attr-defined]
    return any(
        name in (getattr(node, "attr", None), getattr(node, "id", None)) for node in _code(caller)
    )


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions below `node`, without annotations."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _code(each)
