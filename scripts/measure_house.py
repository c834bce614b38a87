"""Prints how large the house is and how its modules import one another: a table, then one line of
JSON.

    python scripts/measure_house.py [ROOT]

It reads the Python files of `libs` and `services` below ROOT, without generated stubs, and runs
none of them. `scripts/walks.toml` below ROOT has the walks."""

from __future__ import annotations

import ast
import gc
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from walks import measure_walks, over_limits

STUBS = "libs/podracer_core/podracer/"
LONG = 60
"""Lines, without the docstring. A longer function is listed."""


@dataclass
class Module:
    """A file: the modules of ours that it imports, anywhere in it, and its long functions by
    name."""

    lines: int
    tokens: int
    import_lines: int = 0
    imports: set[str] = field(default_factory=set)
    long_functions: dict[str, int] = field(default_factory=dict)


Trees = Mapping[str, tuple[ast.Module, str]]
"""Each module, and its text, by dotted name."""

LAYOUT = {
    tokenize.ENCODING,
    tokenize.COMMENT,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Tokens that are not counted, so that another line length or style leaves the number as it is."""


def read_trees(root: Path) -> Trees:
    """The modules of the packages below `libs/*` and `services/*`."""
    trees: dict[str, tuple[ast.Module, str]] = {}
    for path in sorted([*root.glob("libs/*/*/**/*.py"), *root.glob("services/*/*/**/*.py")]):
        parts = path.relative_to(root).with_suffix("").parts
        if path.relative_to(root).as_posix().startswith(STUBS) or "build" in parts[:-1]:
            continue
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[2:-1] if parts[-1] == "__init__" else parts[2:])
        trees[name] = (ast.parse(text), text)
    return trees


def count_tokens(text: str) -> int:
    """Python's tokens in `text`, without comments, line ends and indentation."""
    return sum(
        each.type not in LAYOUT for each in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def _read(name: str, tree: ast.Module, text: str, known: Collection[str]) -> Module:
    module = Module(len(text.splitlines()), count_tokens(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documentation = (
                node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
            )
            length = _lines(node) - sum(map(_lines, documentation))
            if length > LONG:
                module.long_functions[f"{name}:{node.name}"] = length
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module.import_lines += _lines(node)
            module.imports |= {each for each in _imported(node, known) if each != name}
    return module


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _imported(node: ast.Import | ast.ImportFrom, known: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    for alias in node.names:
        whole = f"{node.module}.{alias.name}"
        if whole in known:
            yield whole
        elif node.module in known:
            yield str(node.module)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of names that all reach one another."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph
    }
    return sorted(sorted(group) for group in groups if group)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def floors(graph: Mapping[str, set[str]]) -> int:
    """How many modules stand on one another at most; of a circle each import that closes it is left
    out."""
    heights: dict[str, int] = {}

    def height(name: str, above: frozenset[str]) -> int:
        if name not in heights:
            heights[name] = 1 + max(
                (height(each, above | {name}) for each in graph[name] - above), default=0
            )
        return heights[name]

    return max((height(name, frozenset([name])) for name in graph), default=0)


def measure(root: Path) -> dict[str, object]:
    """All figures of the house below `root`."""
    trees = read_trees(root)
    modules = {name: _read(name, tree, text, trees.keys()) for name, (tree, text) in trees.items()}
    walks, broken = measure_walks(
        root / "scripts/walks.toml", {name: tree for name, (tree, _) in trees.items()}
    )
    graph = {name: module.imports for name, module in modules.items()}
    folders: dict[str, set[str]] = defaultdict(set)
    importers: dict[str, int] = defaultdict(int)
    for name, imports in graph.items():
        folders[_folder(name)] |= {_folder(other) for other in imports} - {_folder(name)}
        for other in imports:
            importers[other] += 1
    lines = sum(module.lines for module in modules.values())
    packages = sorted({name.partition(".")[0] for name in modules})
    return {
        "lines": lines,
        "tokens": sum(module.tokens for module in modules.values()),
        "files": len(modules),
        "import_share": round(
            sum(each.import_lines for each in modules.values()) / max(1, lines), 4
        ),
        "one_importer": sum(count == 1 for count in importers.values()),
        "circles": circles(graph),
        "folder_circles": circles(folders),
        "long_functions": {
            key: each for module in modules.values() for key, each in module.long_functions.items()
        },
        "packages": {package: _of_package(package, modules) for package in packages},
        "walks": walks,
        "walks_over_limits": over_limits(walks),
        "broken_walks": broken,
    }


def _of_package(package: str, modules: Mapping[str, Module]) -> dict[str, int]:
    own = {name: module for name, module in modules.items() if name.partition(".")[0] == package}
    graph = {name: module.imports & own.keys() for name, module in own.items()}
    return {
        "lines": sum(module.lines for module in own.values()),
        "tokens": sum(module.tokens for module in own.values()),
        "files": len(own),
        "floors": floors(graph),
    }


def _folder(name: str) -> str:
    """The first folder, or module, of a package that a module is in."""
    return ".".join(name.split(".")[:2])


def main() -> None:
    """Print the table and the line of JSON."""
    # of millions of nodes, all needed to the end: it would take more time than everything else
    gc.disable()
    figures = measure(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    for key, value in figures.items():
        if isinstance(value, dict):
            print(
                f"{key}: {len(value)}",
                *(f"  {name}: {each}" for name, each in value.items()),
                sep="\n",
            )
        elif isinstance(value, list):
            told = (each if isinstance(each, str) else " ↔ ".join(each) for each in value)
            print(f"{key}: {len(value)}", *(f"  {each}" for each in told), sep="\n")
        else:
            print(f"{key}: {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
