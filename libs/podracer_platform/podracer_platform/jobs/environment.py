"""A job's `environment` and `data`, with the checks that need not start the environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import (
    ArgumentInfo,
    EnvironmentSpec,
    Space,
    StoredFile,
    described_environment,
    find_environment,
)
from podracer_core.config import did_you_mean
from podracer_core.errors import InvalidInput
from podracer_core.sections import Checks
from podracer_platform.attachments import MAX_DATA_BYTES, MAX_PACKED_BYTES
from podracer_platform.messages import files_from_messages, files_to_messages
from podracer_platform.rpc import is_label

_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
}


@dataclass(frozen=True)
class NamedDataSet:
    """A data set of the project by name, with its content at the job's creation.

    file   that content; None until a server has looked it up. Two with the same name are equal
    """

    name: str
    file: StoredFile | None = field(default=None, compare=False)


DataSets = Mapping[str, str | StoredFile | NamedDataSet]
"""Data sets by argument of the environment's constructor: paths of files here, uploaded files in
the store, or names.

In a job file a path, or `{data_set: NAME}`.
"""


def data_from_message(message: job_pb2.JobSpec) -> DataSets:
    """The files and named data sets of a job. Raises InvalidInput for a malformed file."""
    files = files_from_messages(message.data)
    return files | {
        name: NamedDataSet(data_set, files.get(name))
        for name, data_set in message.data_sets.items()
    }


def data_to_message(data: DataSets, message: job_pb2.JobSpec) -> None:
    """The inverse of `data_from_message`. Raises InvalidInput for a file that has not been
    uploaded."""
    files = {
        name: file.file if isinstance(file, NamedDataSet) else file for name, file in data.items()
    }
    uploaded = files_to_messages({name: file for name, file in files.items() if file is not None})
    for name, reference in uploaded.items():
        message.data[name].CopyFrom(reference)
    message.data_sets.update(
        {name: file.name for name, file in data.items() if isinstance(file, NamedDataSet)}
    )


def check_environment(check: Checks, environment: EnvironmentSpec, data: DataSets) -> Space | None:
    """Check the environment; returns its action space if that is known without starting it."""
    if not environment.id:
        return None  # a user's own entry point: known after inspection
    try:
        info = find_environment(environment.id)
    except InvalidInput as error:
        check.violations += error.violations
        return None
    if described_environment(environment.id) is not None:
        _check_arguments(check, environment, data, info.arguments)
    return None if environment.kwargs or data else info.action_space  # arguments may change it


def check_files(check: Checks, environment: EnvironmentSpec, data: DataSets) -> None:
    """Check sizes, and that no argument has two values."""
    if environment.code is not None:
        check.between(
            environment.code.size_bytes, 1, MAX_PACKED_BYTES, "environment.code.size_bytes"
        )
    for name, file in data.items():
        if isinstance(file, NamedDataSet):
            check.that(
                is_label(file.name), f"data.{name}", f"{file.name[:100]!r} is no data set's name"
            )
        if isinstance(file, StoredFile):
            check.between(file.size_bytes, 0, MAX_DATA_BYTES, f"data.{name}.size_bytes")
    try:
        replace(environment, data=dict.fromkeys(data, ""))
    except InvalidInput as error:
        check.violations += error.violations


def _check_arguments(
    check: Checks, environment: EnvironmentSpec, data: DataSets, arguments: Iterable[ArgumentInfo]
) -> None:
    """Check names, and types of values by the catalogue's defaults; inspection finds other
    mistakes."""
    known = {argument.name: argument for argument in arguments}
    files = {name for name, argument in known.items() if argument.is_file}
    for name, value in environment.kwargs.items():
        field = f"environment.kwargs.{name}"
        if name in files:
            check.that(
                name in data,
                field,
                f"is a file: name it under data, such as {_example(known[name])}",
            )
        elif check.that(
            name in known, field, f"unknown argument; {_advice(name, known.keys() - files)}"
        ):
            problem = _value_problem(known[name].default, value)
            check.that(not problem, field, problem)
    for name in filter(str.isidentifier, data):
        check.that(
            name in files,
            f"data.{name}",
            f"{environment.id} takes no such file; {_advice(name, files)}",
        )
    for name, argument in known.items():
        if argument.required and name not in data and name not in environment.kwargs:
            field = f"data.{name}" if argument.is_file else f"environment.kwargs.{name}"
            check.that(
                False, field, f"is missing: {argument.meaning}; such as {_example(argument)}"
            )


def _example(argument: ArgumentInfo) -> str:
    return f"{{{argument.name}: {argument.example}}}"


def _advice(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    return did_you_mean(name, names, f"expected one of {', '.join(names)}", most=2)


def _value_problem(default: object, value: Any) -> str:
    """Why a value does not have the type of `default`; a default of None allows any type."""
    kind = type(default)
    if kind not in _WORDS or _fits(kind, value):
        return ""
    return f"expected {_WORDS[kind]}, such as {_written(default)}; got {_written(value)}"


def _fits(kind: type, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float:
        return is_number
    if kind is int:
        return is_number and value == int(value)
    if kind is tuple:
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping if kind is dict else kind)


def _written(value: object) -> str:
    """The value as in a job file, cut if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"
