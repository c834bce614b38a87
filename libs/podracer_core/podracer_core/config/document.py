"""What a file says, as a tree of nodes with line numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
