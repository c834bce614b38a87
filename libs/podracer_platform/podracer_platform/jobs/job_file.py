"""job.yaml -> JobSpec; every mistake is reported with its line."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from podracer_core.catalogue import EnvironmentSpec, Isolation
from podracer_core.config import INVALID, Builder, BuildFunction, Document, Node, build
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.sections import AlgorithmShare, Fusion, Pod, PodCount, Search, read_space
from podracer_core.storage import FILE_NAME
from podracer_platform.attachments import MAX_DATA_BYTES, code_files, mebibytes
from podracer_platform.jobs.environment import DataSets, NamedDataSet
from podracer_platform.jobs.spec import JobSpec, validate
from podracer_platform.jobs.warm_start import Beginnings, WarmStart
from podracer_platform.yaml_text import load_yaml, parse_yaml

MATRIX = "matrix"
"""The key of a job file with several jobs; see `podracer_platform.jobs.experiment`."""


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
    return dataclasses.replace(section, checkpoint=place)


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
            children[name] = dataclasses.replace(
                children[name], value=value if isinstance(value, int) else None
            )
    pod = builder.dataclass(Pod, dataclasses.replace(node, value=children), path)
    return pod if valid else INVALID
