"""A YAML tree -> frozen dataclasses, with every mistake reported at its line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from podracer_core.config.other_libraries import advice
from podracer_core.config.scalars import alternatives, expected, from_yaml, unit_of
from podracer_core.errors import FieldViolation, InvalidInput

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class LocatedViolation(FieldViolation):
    """A violation with its place in a file: `job.yaml:12: search.space.gamma: expected …, got
    …`."""

    source: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {super().__str__()}"


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a sequence or a mapping of nodes.

    line       where the value starts, from 1
    key_line   the line of its key (the value's line for an item of a sequence)
    count      number of nodes in it, itself included, aliases counted each time
    """

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    line: int
    key_line: int
    count: int = 1

    @classmethod
    def from_plain(cls, value: Any) -> Node:
        """JSON values (and paths) as a tree without meaningful line numbers."""
        if isinstance(value, Mapping):
            return cls({str(key): cls.from_plain(inner) for key, inner in value.items()}, 0, 0)
        if isinstance(value, list | tuple):
            return cls(tuple(cls.from_plain(inner) for inner in value), 0, 0)
        return cls(os.fspath(value) if isinstance(value, os.PathLike) else value, 0, 0)

    def plain(self) -> Any:
        """The value without lines: scalars, lists and dicts."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def find(self, path: str) -> Node:
        """The node at `search.space.gamma` or `algorithms[1]`, or the deepest existing node on the
        way."""
        if isinstance(self.value, Mapping):
            for key in sorted(self.value, key=len, reverse=True):  # keys may have dots in them
                rest = path.removeprefix(key)
                if path.startswith(key) and (not rest or rest[0] in ".["):
                    return self.value[key].find(rest.removeprefix("."))
        elif isinstance(self.value, tuple) and (found := re.match(r"\[(\d+)\]\.?", path)):
            index = int(found[1])
            if index < len(self.value):
                return self.value[index].find(path[found.end() :])
        return self


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file; `source` is its name in messages."""

    source: str
    root: Node

    def locate(self, violation: FieldViolation) -> LocatedViolation:
        """The same violation with the line of its field, or of the nearest enclosing node."""
        if isinstance(violation, LocatedViolation):
            return violation
        node = self.root.find(violation.field)
        return LocatedViolation(violation.field, violation.message, self.source, node.key_line)

    def refuse(self, violations: Sequence[FieldViolation]) -> InvalidInput:
        """The error with all violations and their lines, in the file's order."""
        located = sorted(
            (self.locate(violation) for violation in violations),
            key=lambda violation: violation.line,
        )
        message = str(located[0])
        if len(located) > 1:
            message = f"{self.source} has {len(located)} mistakes:\n" + "\n".join(
                f"  {entry}" for entry in located
            )
        return InvalidInput(message, violations=located, reason="INVALID_FILE", source=self.source)


T = TypeVar("T")

INVALID: Any = object()
"""The result of a builder for a value that it has reported as wrong."""

BuildFunction = Callable[["Builder", Node, str], Any]


def build(
    cls: type[T], document: Document, builders: Mapping[Any, BuildFunction] | None = None
) -> T:
    """An instance of the dataclass `cls` from the document's root.

    Understands nested dataclasses, `X | None` and other unions, tuple[X, ...], tuple[A, B],
    Mapping[str, X], Literal, enums, Seconds, ByteSize, Path, Any and scalars. `builders` gives the
    function for types that need another notation.

    Raises InvalidInput with every unknown key (and the nearest known one), missing key and wrong
    value, by line."""
    builder = Builder(document.source, builders or {})
    instance = builder.value(cls, document.root, "")
    if builder.problems:
        raise document.refuse(builder.problems)
    return instance  # type: ignore[no-any-return]


class Builder:
    """Builds values and collects `problems`; a value that could not be built is INVALID."""

    def __init__(self, source: str, builders: Mapping[Any, BuildFunction]) -> None:
        self.source = source
        self.builders = builders
        self.problems: list[LocatedViolation] = []

    def value(self, kind: Any, node: Node, path: str) -> Any:
        """A value of the type `kind` from `node`, whose field path is `path`."""
        if kind in self.builders:
            return self.builders[kind](self, node, path)
        if get_origin(kind) is Annotated and not unit_of(kind):
            kind = get_args(kind)[0]
        origin = get_origin(kind)
        if kind is Any:
            return node.plain()
        if len(alternatives(kind)) > 1:
            return self._union(kind, node, path)
        if is_dataclass(kind):
            return self.dataclass(kind, node, path)
        if origin is tuple:
            return self._tuple(kind, node, path)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(get_args(kind)[1], node, path)
        try:
            return from_yaml(kind, node.value)
        except ValueError:
            return self.wrong(node, path, expected(kind))

    def report(self, node: Node, path: str, message: str, *, at_key: bool = False) -> Any:
        """Report a problem at a node; returns INVALID."""
        line = node.key_line if at_key else node.line
        self.problems.append(LocatedViolation(path, message, self.source, line))
        return INVALID

    def wrong(self, node: Node, path: str, wanted: str) -> Any:
        """Report a value of the wrong form; returns INVALID."""
        return self.report(node, path, f"expected {wanted}, got {_got(node)}")

    def dataclass(self, kind: Any, node: Node, path: str) -> Any:
        """An instance of the dataclass `kind` from a mapping whose keys are its fields."""
        kinds = get_type_hints(kind, include_extras=True)
        known = {field.name: field for field in fields(kind) if field.init}
        if not isinstance(node.value, Mapping):
            return self.wrong(node, path, f"a mapping with the keys {', '.join(known)}")
        values: dict[str, Any] = {}
        for key, child in node.value.items():
            if key in known:
                values[key] = self.value(kinds[key], child, _join(path, key))
            else:
                self.unknown_key(child, path, key, known)
        for name, field in known.items():
            if name not in values and field.default is MISSING and field.default_factory is MISSING:
                self.report(
                    node,
                    _join(path, name),
                    f"is missing; expected {expected(kinds[name])}",
                    at_key=True,
                )
                values[name] = INVALID
        if any(value is INVALID for value in values.values()):
            return INVALID
        try:
            return kind(**values)
        except InvalidInput as error:
            for violation in error.violations:
                self.report(
                    node.find(violation.field),
                    _join(path, violation.field),
                    violation.message,
                    at_key=True,
                )
            return INVALID if error.violations else self.report(node, path, error.message)

    def unknown_key(self, node: Node, path: str, key: str, known: Mapping[str, Any]) -> Any:
        """Report an unknown key; returns INVALID."""
        return self.report(
            node, _join(path, key), f"unknown key; {advice(key, known)}", at_key=True
        )

    def _union(self, kind: Any, node: Node, path: str) -> Any:
        """The first alternative that fits. If none fits and only one has the node's shape, its
        problems are reported."""
        told: list[list[LocatedViolation]] = []
        for option in alternatives(kind):
            trial = Builder(self.source, self.builders)
            value = trial.value(option, node, path)
            if not trial.problems:
                return value
            if option is not NoneType and _has_shape(option, node):
                told.append(trial.problems)
        if len(told) == 1 and isinstance(node.value, Mapping | tuple):
            self.problems += told[0]
            return INVALID
        return self.wrong(node, path, expected(kind))

    def _tuple(self, kind: Any, node: Node, path: str) -> Any:
        kinds = get_args(kind)
        if not isinstance(node.value, tuple):
            return self.wrong(node, path, expected(kind))
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(node.value)
        elif len(kinds) != len(node.value):
            return self.report(
                node, path, f"expected {expected(kind)}, got {len(node.value)} of them"
            )
        pairs = enumerate(zip(kinds, node.value, strict=True))
        values = tuple(
            self.value(item, child, f"{path}[{index}]") for index, (item, child) in pairs
        )
        return INVALID if any(value is INVALID for value in values) else values

    def _mapping(self, kind: Any, node: Node, path: str) -> Any:
        if not isinstance(node.value, Mapping):
            return self.wrong(node, path, "a mapping")
        values = {
            key: self.value(kind, child, _join(path, key)) for key, child in node.value.items()
        }
        return INVALID if any(value is INVALID for value in values.values()) else values


def _has_shape(kind: Any, node: Node) -> bool:
    """Whether a value of `kind` is written as this type of node: a mapping, a list or a scalar."""
    origin = get_origin(kind)
    is_mapping = is_dataclass(kind) or (isinstance(origin, type) and issubclass(origin, Mapping))
    if isinstance(node.value, Mapping):
        return is_mapping
    if isinstance(node.value, tuple):
        return origin is tuple
    return not is_mapping and origin is not tuple


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key


def _got(node: Node) -> str:
    if isinstance(node.value, Mapping):
        return "a mapping" if node.value else "an empty mapping"
    if isinstance(node.value, tuple):
        return "a list" if node.value else "an empty list"
    if node.value is None:
        return "nothing"
    text = repr(node.value)
    return text if len(text) <= 60 else f"{text[:57]}…"
