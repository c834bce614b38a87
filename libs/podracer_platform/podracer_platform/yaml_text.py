"""YAML text -> a tree of nodes with line numbers. Safe on any input: bounded in size, depth and
number of nodes.

Plain scalars are read as YAML 1.2 says, with underscores in numbers: `1e-4` is a number, `yes` and
`on` are words. Tags are refused, so the only values are text, numbers, booleans and nulls."""

from __future__ import annotations

import contextlib
import math
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from podracer_core.config.document import Document, LocatedViolation, Node, Scalar
from podracer_core.errors import InvalidInput

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_BASED_INTEGER = re.compile(r"0x[0-9a-fA-F_]+|0o[0-7_]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Scalar] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".nan": math.nan, ".NaN": math.nan, ".NAN": math.nan,
    **{f"{sign}{word}": value for word in (".inf", ".Inf", ".INF")
       for sign, value in (("", math.inf), ("+", math.inf), ("-", -math.inf))},
}  # fmt: skip


def load_yaml(path: Path) -> Document:
    """Read a YAML file. Raises InvalidInput if it cannot be read, is too large, not UTF-8 or not
    YAML."""
    try:
        with path.open("rb") as file:
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size > MAX_FILE_BYTES:
                raise _too_large(path, f"{status.st_size / 2**20:.1f} MiB")
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        what = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(
            f"cannot read {path}: {what}", reason="UNREADABLE_FILE", path=path
        ) from error
    if len(data) > MAX_FILE_BYTES:
        raise _too_large(path, "more")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not a YAML file in UTF-8: byte 0x{data[error.start]:02x} at offset "
            f"{error.start}",
            reason="UNREADABLE_FILE",
            path=path,
        ) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Document:
    """Parse the text of one YAML document; `source` is its name in messages. Raises
    InvalidInput."""
    try:
        return Document(source, _Parser(text, source).document())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        told = (getattr(error, name, None) for name in ("context", "problem", "reason"))
        raise _refusal(
            source, mark.line + 1 if mark else 1, f"not valid YAML: {' '.join(filter(None, told))}"
        ) from error


class _Parser:
    """Events -> nodes. Not PyYAML's own composer: that recurses without limit and drops duplicate
    keys."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, Node] = {}
        self._count = 0

    def document(self) -> Node:
        next(self._events)  # start of the stream
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return Node(None, 1, 1)
        root = self._node(next(self._events), None, 0)
        next(self._events)  # end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._refused(event, "a second document starts here; expected one")
        return root

    def _node(self, event: Any, key_line: int | None, depth: int) -> Node:
        line: int = event.start_mark.line + 1
        key_line = line if key_line is None else key_line
        if depth > MAX_DEPTH:
            raise self._refused(event, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._refused(event, f"unknown alias *{event.anchor}")
            anchored = self._anchors[event.anchor]
            node = Node(anchored.value, line, key_line, anchored.count)
            self._add(event, node.count)
            return node
        if event.tag not in (None, "!"):
            raise self._refused(event, f"tags are not allowed: {event.tag}")
        self._add(event, 1)
        before = self._count
        value: Scalar | tuple[Node, ...] | Mapping[str, Node]
        if isinstance(event, yaml.ScalarEvent):
            value = _resolve(event.value) if event.implicit[0] else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = tuple(self._items(depth))
        else:
            value = self._mapping(depth)
        node = Node(value, line, key_line, 1 + self._count - before)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, None, depth + 1)

    def _mapping(self, depth: int) -> Mapping[str, Node]:
        nodes: dict[str, Node] = {}
        while True:
            event = next(self._events)
            line = event.start_mark.line + 1
            if isinstance(event, yaml.MappingEndEvent):
                return nodes
            if not isinstance(event, yaml.ScalarEvent) or (
                event.value == "<<" and event.implicit[0]
            ):
                raise self._refused(event, "keys must be plain words")
            if event.value in nodes:
                first = nodes[event.value].key_line
                raise self._refused(
                    event, f"key {event.value!r} is there twice, first in line {first}"
                )
            nodes[event.value] = self._node(next(self._events), line, depth + 1)

    def _add(self, event: Any, count: int) -> None:
        self._count += count
        if self._count > MAX_NODES:
            raise self._refused(event, f"more than {MAX_NODES} values, aliases counted each time")

    def _refused(self, event: Any, message: str) -> InvalidInput:
        return _refusal(self._source, event.start_mark.line + 1, message)


def _resolve(text: str) -> Scalar:
    """The value of a plain scalar."""
    if text in _WORDS:
        return _WORDS[text]
    number = text.replace("_", "")
    with contextlib.suppress(
        ValueError, OverflowError
    ):  # hundreds of digits: left as a word, which is no number either
        if _INTEGER.fullmatch(text) or _BASED_INTEGER.fullmatch(text):
            whole = int(number, 0 if _BASED_INTEGER.fullmatch(text) else 10)
            float(whole)
            return whole
        if _FLOAT.fullmatch(text):
            return float(number)
    return text


def _refusal(source: str, line: int, message: str) -> InvalidInput:
    violation = LocatedViolation("", message, source, line)
    return InvalidInput(
        str(violation), violations=[violation], reason="INVALID_FILE", source=source
    )


def _too_large(path: Path, size: str) -> InvalidInput:
    limit = f"at most {MAX_FILE_BYTES // 2**20} MiB are allowed"
    return InvalidInput(f"{path} is too large: {size}, {limit}", reason="FILE_TOO_LARGE", path=path)
