"""`matrix:` in a job file: axes, of whose values every combination makes a job."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from podracer_core.config import Document, LocatedViolation, Node
from podracer_core.errors import FieldViolation
from podracer_platform.jobs.job_file import MATRIX

MAX_JOBS = 1_000
MAX_TEXT = 63
"""Characters of a label's key and value."""

# what follows is one key, dots and all
_OPEN_SECTIONS = (("search", "space"), ("labels",), ("data",))
_GIVEN = ("name", "labels", "labels.experiment", f"labels.{MATRIX}")
"""Keys that the matrix sets itself, including the keys below the last one."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of the field at `path` of a job file; `texts` are their distinct texts, for labels and
    users."""

    path: str
    values: tuple[Node, ...]
    texts: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that lead to the field."""
        return _keys(self.path)


@dataclass(frozen=True, slots=True)
class Combination:
    """One value of each axis: their texts by path, and the job file that contains them."""

    texts: Mapping[str, str]
    document: Document

    def __str__(self) -> str:
        return ", ".join(f"{path} = {text}" for path, text in self.texts.items())


def axis_label(path: str) -> str:
    """The label that holds a job's value of the axis `path`."""
    return f"{MATRIX}.{path}"


def split_matrix(document: Document) -> tuple[Document, tuple[Axis, ...]]:
    """The file without its matrix, and its axes; none without a matrix.

    Raises InvalidInput with line and field for an invalid axis, or too many jobs.
    """
    root = document.root
    if not isinstance(root.value, Mapping) or MATRIX not in root.value:
        return document, ()
    matrix = root.value[MATRIX]
    if not isinstance(matrix.value, Mapping) or not matrix.value:
        message = "expected axes, such as {seed: [0, 1, 2], search.algorithms: [[ppo], [sac]]}"
        raise document.refuse([FieldViolation(MATRIX, message)])
    problems = [
        FieldViolation(f"{MATRIX}.{path}", problem)
        for path, node in matrix.value.items()
        if (problem := _axis_problem(path, node, matrix.value))
    ]
    if problems:
        raise document.refuse(problems)
    count = math.prod(len(_items(node)) for node in matrix.value.values())
    if count > MAX_JOBS:
        raise document.refuse(
            [FieldViolation(MATRIX, f"makes {count:_} jobs; expected at most {MAX_JOBS:_}")]
        )
    rest = {key: node for key, node in root.value.items() if key != MATRIX}
    axes = tuple(
        Axis(path, _items(node), _texts(_items(node))) for path, node in matrix.value.items()
    )
    return replace(document, root=replace(root, value=_with_sections(rest))), axes


def combinations(document: Document, axes: Sequence[Axis]) -> Iterator[Combination]:
    """The product of the axes, the last one changing fastest. Raises InvalidInput if a value does
    not fit."""
    for chosen in itertools.product(*(range(len(axis.values)) for axis in axes)):
        root = document.root
        for axis, index in zip(axes, chosen, strict=True):
            placed = _placed(root, axis.keys, axis.values[index])
            if placed is None:
                message = (
                    "does not fit: the key above it in the file holds a value, expected a section"
                )
                line = axis.values[index].line
                raise document.refuse(
                    [LocatedViolation(f"{MATRIX}.{axis.path}", message, document.source, line)]
                )
            root = placed
        texts = {axis.path: axis.texts[index] for axis, index in zip(axes, chosen, strict=True)}
        yield Combination(texts, replace(document, root=root))


def _axis_problem(path: str, node: Node, others: Mapping[str, Node]) -> str:
    """Why this is not a valid axis; empty if it is."""
    keys = _keys(path)
    if not all(keys) or path in _GIVEN or path.startswith(f"{_GIVEN[-1]}."):
        return (
            "expected the path of a field that may differ between jobs, such as seed or "
            "search.space.gamma"
        )
    if len(axis_label(path)) > MAX_TEXT:
        return (
            f"is too long for a label: expected at most {MAX_TEXT - len(axis_label(''))} characters"
        )
    inside = [
        other for other in others if other != path and keys[: len(_keys(other))] == _keys(other)
    ]
    if inside:
        return f"is part of the axis {inside[0]}: keep one of the two"
    if not isinstance(node.value, tuple) or not node.value:
        return "expected a list of at least one value, such as [0, 1, 2]"
    plain = [item.plain() for item in node.value]
    texts = list(map(_text, plain))
    twice = [
        text
        for index, text in enumerate(texts)
        if text in texts[:index] or plain[index] in plain[:index]
    ]
    return f"{twice[0]} is there twice" if twice else ""


def _keys(path: str) -> tuple[str, ...]:
    keys = tuple(path.split("."))
    for section in _OPEN_SECTIONS:
        if keys[: len(section)] == section and len(keys) > len(section):
            return (*section, ".".join(keys[len(section) :]))
    return keys


def _items(node: Node) -> tuple[Node, ...]:
    assert isinstance(node.value, tuple), "checked before"
    return node.value


def _with_sections(root: Mapping[str, Node]) -> Mapping[str, Node]:
    """An environment that is only an id as the section that it stands for."""
    environment = root.get("environment")
    if environment is None or not isinstance(environment.value, str):
        return root
    return {**root, "environment": replace(environment, value={"id": environment})}


def _placed(node: Node, keys: Sequence[str], value: Node) -> Node | None:
    """`node` with `value` at the path; missing sections are added. None if a key on the path holds
    a value."""
    if node.value is not None and not isinstance(node.value, Mapping):
        return None
    key, *rest = keys
    children = dict(node.value or {})
    child: Node | None = value
    if rest:
        child = _placed(children.get(key, Node({}, value.line, value.key_line)), rest, value)
    if child is None:
        return None
    return replace(node, value={**children, key: child})


def _texts(values: Sequence[Node]) -> tuple[str, ...]:
    """The texts of values. Long ones are cut and numbered by their place in the list."""
    texts = [_text(value.plain()) for value in values]
    return tuple(
        text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 7]}… #{place}"
        for place, text in enumerate(texts, 1)
    )


def _text(value: object) -> str:
    """The value as YAML in one line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_text(inner)}' for key, inner in value.items())}}}"
        case _:
            return text if (text := str(value)).isprintable() else repr(text)[1:-1]
