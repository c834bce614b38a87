"""job.yaml -> JobSpec, or several of them: with a `matrix:` of axes, every combination of their
values makes a job, and all together an experiment. Every mistake is reported with its line."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from podracer_core.catalogue import EnvironmentSpec, Isolation
from podracer_core.config import (
    INVALID,
    Builder,
    BuildFunction,
    Document,
    LocatedViolation,
    Node,
    build,
)
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.sections import AlgorithmShare, Fusion, Pod, PodCount, Search, read_space
from podracer_core.storage import FILE_NAME
from podracer_platform.attachments import MAX_DATA_BYTES, code_files, mebibytes
from podracer_platform.jobs.sections import Beginnings, DataSets, NamedDataSet, WarmStart
from podracer_platform.jobs.spec import JobSpec, validate
from podracer_platform.rpc import is_label
from podracer_platform.yaml_text import load_yaml, parse_yaml

EXPERIMENT_LABEL = "experiment"
"""Label of every job of an experiment: the name in its file."""

_MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class Experiment:
    """The jobs of one file. `axes` are the paths of its matrix; without a matrix there is one
    job."""

    name: str
    axes: tuple[str, ...]
    jobs: tuple[JobSpec, ...]


MATRIX = "matrix"
"""The key of a job file with several jobs; see `podracer_platform.jobs.job_file`."""


def load_job_file(path: Path) -> JobSpec:
    """Read, build and validate a job file.

    Raises InvalidInput with every mistake, each with file, line, field and the expected value. A
    `code` folder and the files of `data` are relative to the job file. They are checked here and
    read when the job is submitted."""
    return _one_job(load_yaml(path), path.parent)


def parse_job(text: str, source: str = "job.yaml", folder: Path | None = Path()) -> JobSpec:
    """`load_job_file` of a text. Messages name it `source`; `code` and `data` are relative to
    `folder`; None: no local file may be named, nor is one looked at."""
    return _one_job(parse_yaml(text, source), folder)


def _one_job(document: Document, folder: Path | None) -> JobSpec:
    if isinstance(document.root.value, Mapping) and MATRIX in document.root.value:
        message = "makes several jobs, expected one; use `podracer submit` or `podracer run`"
        raise document.refuse([FieldViolation(MATRIX, message)])
    return build_job(document, folder)


def build_job(document: Document, folder: Path | None) -> JobSpec:
    """The job of a document without a matrix, as `load_job_file` does it."""
    builders: dict[Any, BuildFunction] = {
        EnvironmentSpec: partial(_environment, folder=folder),
        DataSets: partial(_data, folder=folder),
        Search: _search,
        Pod: _pod,
        PodCount: _pod_count,
        Fusion: partial(_section_or_name, kind=Fusion),
        Beginnings: partial(_warm_start, folder=folder),
    }
    spec = build(JobSpec, document, builders)
    try:
        validate(spec)
    except InvalidInput as error:
        raise document.refuse(error.violations) from error
    return spec


@dataclass(frozen=True)
class _EnvironmentSection:
    """`environment:` as it is written."""

    id: str = ""
    entry_point: str = ""
    code: Path | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    isolation: Isolation = ""
    network: bool = False


def _environment(builder: Builder, node: Node, path: str, folder: Path | None) -> Any:
    """A section, or only the id."""
    if isinstance(node.value, str):
        section = _EnvironmentSection(id=node.value)
    else:
        section = builder.dataclass(_EnvironmentSection, node, path)
        if section is INVALID:
            return INVALID
    code_path = ""
    if section.code is not None:
        try:
            code = _resolved(folder, section.code)
        except InvalidInput as error:
            return builder.report(node.find("code"), f"{path}.code", error.message)
        if not code.is_dir() and not (code.is_file() and code.suffix == ".py"):
            return builder.report(
                node.find("code"), f"{path}.code", f"expected a folder; there is none at {code}"
            )
        code_path = str(code)
    try:
        spec = EnvironmentSpec(
            section.id,
            section.entry_point,
            code_path,
            section.kwargs,
            section.max_episode_steps,
            isolation=section.isolation,
            network=section.network,
        )
        if code_path:
            code_files(Path(code_path), spec.entry_point)
        return spec
    except InvalidInput as error:
        for violation in error.violations:
            inner = violation.field.removeprefix(f"{path}.")
            builder.report(node.find(inner), violation.field, violation.message, at_key=True)
        return INVALID


def _data(builder: Builder, node: Node, path: str, folder: Path | None) -> Any:
    """`argument: file`, relative to the job file, or `argument: {data_set: NAME}`."""
    if not isinstance(node.value, Mapping):
        return builder.wrong(node, path, "a mapping")
    files: dict[str, str | NamedDataSet] = {}
    for name, child in node.value.items():
        if isinstance(child.value, Mapping):
            section = builder.dataclass(_DataSetSection, child, f"{path}.{name}")
            if section is not INVALID:
                files[name] = NamedDataSet(section.data_set)
            continue
        file = builder.value(Path, child, f"{path}.{name}")
        if file is INVALID:
            continue
        try:
            files[name] = str(_data_file(_resolved(folder, file)))
        except InvalidInput as error:
            builder.report(child, f"{path}.{name}", error.message)
    return files if len(files) == len(node.value) else INVALID


@dataclass(frozen=True)
class _DataSetSection:
    """A data set of the server's, as it is written."""

    data_set: str


def _section_or_name(
    builder: Builder, node: Node, path: str, kind: type[Fusion | WarmStart]
) -> Any:
    """A section, or only its first field."""
    return kind(node.value) if isinstance(node.value, str) else builder.dataclass(kind, node, path)


def _warm_start(builder: Builder, node: Node, path: str, folder: Path | None) -> Any:
    """The name of a job, or a section; a checkpoint's folder is relative to the job file."""
    section = _section_or_name(builder, node, path, WarmStart)
    if section is INVALID or section.checkpoint is None:
        return section
    try:
        place = _resolved(folder, section.checkpoint)
    except InvalidInput as error:
        return builder.report(node.find("checkpoint"), f"{path}.checkpoint", error.message)
    place = place.parent if place.name == FILE_NAME else place
    if not (place / FILE_NAME).is_file():
        problem = (
            f"expected a saved result or checkpoint, a folder with a {FILE_NAME}; there is "
            f"none at {place}"
        )
        return builder.report(node.find("checkpoint"), f"{path}.checkpoint", problem)
    return replace(section, checkpoint=place)


def _data_file(file: Path) -> Path:
    """The path of a data set. Raises InvalidInput if it cannot be uploaded."""
    if not file.is_file():
        what = (
            "a folder" if file.is_dir() else "another kind of thing" if file.exists() else "nothing"
        )
        raise InvalidInput(f"expected a file; there is {what} at {file}")
    if not os.access(file, os.R_OK):
        raise InvalidInput(f"{file} cannot be read: permission denied")
    if (size_bytes := file.stat().st_size) > MAX_DATA_BYTES:
        raise InvalidInput(
            f"{file} has {mebibytes(size_bytes)}, the limit is {mebibytes(MAX_DATA_BYTES)}"
        )
    return file


def _resolved(folder: Path | None, path: Path) -> Path:
    """A path of a job file in `folder`. Raises InvalidInput for an impossible or inaccessible one,
    or if it is None."""
    if folder is None:
        raise InvalidInput("names a local file; submit such a job with `podracer submit`")
    try:
        place = (folder / path.expanduser()).resolve()
        place.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long; no such user's home; a NUL
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"{str(path)[:100]!r} cannot be looked up: {why}") from error
    return place


@dataclass(frozen=True)
class _SearchSection:
    """`search:` as written; its two keys have their own notations."""

    algorithms: Any = "auto"
    space: Any = None


def _search(builder: Builder, node: Node, path: str) -> Any:
    if builder.dataclass(_SearchSection, node, path) is INVALID:
        return INVALID
    assert isinstance(node.value, Mapping)
    algorithms: Any = ()
    space: Any = ()
    if "algorithms" in node.value:
        algorithms = _algorithms(builder, node.value["algorithms"], f"{path}.algorithms")
    if "space" in node.value:
        space = read_space(builder, node.value["space"], f"{path}.space")
    if not node.value:
        return builder.report(
            node, path, "is empty: name algorithms or a space, or leave it out", at_key=True
        )
    return INVALID if INVALID in (algorithms, space) else Search(algorithms, space)


def _algorithms(builder: Builder, node: Node, path: str) -> Any:
    """`auto`, a list of names, or a mapping of names to shares."""
    if node.value == "auto":
        return ()
    if isinstance(node.value, str):
        return (AlgorithmShare(node.value),)
    if not isinstance(node.value, tuple | Mapping):
        return builder.wrong(node, path, "auto, a list such as [ppo], or shares such as {ppo: 2}")
    if not node.value:
        return builder.report(
            node, path, "is empty: name at least one algorithm, or write auto", at_key=True
        )
    if isinstance(node.value, tuple):
        names = builder.value(tuple[str, ...], node, path)
        return INVALID if names is INVALID else tuple(AlgorithmShare(name) for name in names)
    shares = builder.value(Mapping[str, float], node, path)
    return (
        INVALID
        if shares is INVALID
        else tuple(AlgorithmShare(name, share) for name, share in shares.items())
    )


def _pod_count(builder: Builder, node: Node, path: str) -> Any:
    """`{min: 1, max: 4}`, or one number for both."""
    if isinstance(node.value, Mapping):
        return builder.dataclass(PodCount, node, path)
    count = builder.value(int, node, path)
    return INVALID if count is INVALID else PodCount(count, count)


def _pod(builder: Builder, node: Node, path: str) -> Any:
    """`auto` is written where the dataclass has None."""
    if not isinstance(node.value, Mapping):
        return builder.dataclass(Pod, node, path)
    children, valid = dict(node.value), True
    for name in ("members", "envs_per_member"):
        if name in children:
            value = builder.value(Literal["auto"] | int, children[name], f"{path}.{name}")
            valid = valid and value is not INVALID
            children[name] = replace(
                children[name], value=value if isinstance(value, int) else None
            )
    pod = builder.dataclass(Pod, replace(node, value=children), path)
    return pod if valid else INVALID


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


def load_experiment(file: Path | Document, folder: Path | None = None) -> Experiment:
    """Read, build and validate a job file, with or without a matrix; of a `Document`, `code` and
    `data` are relative to `folder`.

    Raises InvalidInput with every mistake of every job, each once, with file, line, field and the
    expected value. If only some jobs have the mistake, it names the first such combination."""
    if isinstance(file, Path):
        folder = file.parent
        file = load_yaml(file)
    document, axes = split_matrix(file)
    if not axes:
        job = build_job(document, folder)
        return Experiment(job.name, (), (job,))
    product = list(combinations(document, axes))
    _check_names(document, [axis.path for axis in axes], len(product))
    jobs: list[JobSpec] = []
    mistakes: dict[LocatedViolation, list[Combination]] = {}
    for number, combination in enumerate(product, 1):
        try:
            jobs.append(build_job(_named(combination, number), folder))
        except InvalidInput as error:
            for violation in error.violations:
                mistakes.setdefault(document.locate(violation), []).append(combination)
    if mistakes:
        told = [_told(violation, where, len(product)) for violation, where in mistakes.items()]
        raise document.refuse(told)
    return Experiment(str(_value(document, "name")), tuple(axis.path for axis in axes), tuple(jobs))


def parse_experiment(
    text: str, source: str = "job.yaml", folder: Path | None = Path()
) -> Experiment:
    """`load_experiment` of a text; see `parse_job`."""
    return load_experiment(parse_yaml(text, source), folder)


def _told(violation: LocatedViolation, where: Sequence[Combination], jobs: int) -> LocatedViolation:
    """The mistake with its combination, unless all combinations have it."""
    if len(where) == jobs:
        return violation
    more = f", and {len(where) - 1:_} more" if len(where) > 1 else ""
    return replace(violation, message=f"{violation.message} (where {where[0]}{more})")


def _check_names(document: Document, paths: Sequence[str], count: int) -> None:
    """Check the names and labels that the matrix makes, once for all jobs."""
    problems = []
    name, ending = _value(document, "name"), f"-{count}"
    if isinstance(name, str) and is_label(name) and len(name) + len(ending) > _MAX_NAME:
        message = (
            f"with {ending} at its end it has more than {_MAX_NAME} characters; expected a "
            "shorter one"
        )
        problems.append(FieldViolation("name", message))
    labels = _value(document, "labels")
    problems += [
        FieldViolation(f"labels.{label}", "is set by the matrix; choose another label")
        for label in (EXPERIMENT_LABEL, *map(axis_label, paths))
        if isinstance(labels, Mapping) and label in labels
    ]
    if problems:
        raise document.refuse(problems)


def _named(combination: Combination, number: int) -> Document:
    """The combination's file with its job's own name and labels."""
    document, name = combination.document, _value(combination.document, "name")
    assert isinstance(document.root.value, Mapping), "a matrix has been found in it"
    children = dict(document.root.value)
    if isinstance(name, str) and is_label(name):  # any other name is reported unchanged
        children["name"] = replace(children["name"], value=f"{name}-{number}")
        ours = {
            EXPERIMENT_LABEL: name,
            **{axis_label(path): text for path, text in combination.texts.items()},
        }
        labels = children.get("labels", Node({}, document.root.line, document.root.key_line))
        if isinstance(labels.value, Mapping):
            added = {key: Node(text, labels.line, labels.key_line) for key, text in ours.items()}
            children["labels"] = replace(labels, value={**labels.value, **added})
    return replace(document, root=replace(document.root, value=children))


def _value(document: Document, key: str) -> object:
    root = document.root.value
    return root[key].value if isinstance(root, Mapping) and key in root else None
