"""Reads `walks.toml`: the functions that a thing passes through, each checked against the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

COUNTED = ("hops", "conversions", "files")
_LINE = re.compile(r"(?P<hands_on>~ )?(?P<module>[\w.]+):(?P<name>[\w.]+)(?: = (?P<made>.+))?")


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
    files, hops, conversions = set[str](), 0, 0
    before: list[ast.AST] = []
    for line in path.strip().splitlines():
        if line.startswith("("):
            before = []
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{walk}: expected `module:name`, got {line!r}")
        module, name = match["module"], match["name"]
        found = _find(trees.get(module), name)
        if found is None:
            broken.append(f"{walk}: there is no {module}:{name}")
            continue
        if (
            before
            and not any(_names(each, name) for each in before)
            and not _names(found, _name_of(before[-1]))
        ):
            broken.append(f"{walk}: no function before {module}:{name} names it")
        before.append(found)
        if not match["hands_on"]:
            files.add(module)
            hops += 1
            conversions += match["made"] is not None
    return dict(zip(COUNTED, (hops, conversions, len(files)), strict=True))


def _find(tree: ast.AST | None, qualified: str) -> ast.AST | None:
    """The function or class of that name."""
    for part in qualified.split("."):
        found = [each for each in getattr(tree, "body", []) if getattr(each, "name", None) == part]
        tree = found[0] if found else None
    return tree


def _names(function: ast.AST, name: str) -> bool:
    """Whether the body calls or mentions something whose last name is that of `name`."""
    last = name.rpartition(".")[2]
    return any(
        last in (getattr(node, "attr", None), getattr(node, "id", None))
        for node in ast.walk(function)
    )


def _name_of(function: ast.AST) -> str:
    return str(getattr(function, "name", ""))
