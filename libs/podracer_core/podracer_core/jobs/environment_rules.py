"""What cannot be right in a job's `environment` and `data`, as far as it can be told without starting anything."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from podracer_core.attachments.limits import MAX_DATA_BYTES, MAX_PACKED_BYTES
from podracer_core.catalogue.environments import BUILT_IN, find_environment
from podracer_core.catalogue.environments.info import ArgumentInfo
from podracer_core.catalogue.environments.spec import StoredFile
from podracer_core.catalogue.spaces import Space
from podracer_core.errors import InvalidInput
from podracer_core.jobs.checks import Checks
from podracer_core.jobs.spec import JobSpec, NamedDataSet

__all__ = ["check_environment", "check_files"]

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
}


def check_environment(check: Checks, spec: JobSpec) -> Space | None:
    """Its action space, where it is known without starting it."""
    if not spec.environment.id:
        return None  # a user's own entry point: inspection tells
    try:
        info = find_environment(spec.environment.id)
    except InvalidInput as error:
        check.violations += error.violations
        return None
    if spec.environment.id in BUILT_IN:
        _check_arguments(check, spec, info.arguments)
    return None if spec.environment.kwargs or spec.data else info.action_space  # arguments may change it


def check_files(check: Checks, spec: JobSpec) -> None:
    """Sizes, and that no argument has two values."""
    if spec.environment.code is not None:
        check.between(spec.environment.code.size_bytes, 1, MAX_PACKED_BYTES, "environment.code.size_bytes")
    for name, file in spec.data.items():
        if isinstance(file, NamedDataSet):
            check.that(bool(_LABEL.fullmatch(file.name)), f"data.{name}", f"{file.name[:100]!r} is no data set's name")
        if isinstance(file, StoredFile):
            check.between(file.size_bytes, 0, MAX_DATA_BYTES, f"data.{name}.size_bytes")
    try:
        replace(spec.environment, data=dict.fromkeys(spec.data, ""))
    except InvalidInput as error:
        check.violations += error.violations


def _check_arguments(check: Checks, spec: JobSpec, arguments: Iterable[ArgumentInfo]) -> None:
    """Names, and the kinds of values that the catalogue knows by their defaults; the rest is for inspection to tell."""
    known = {argument.name: argument for argument in arguments}
    files = {name for name, argument in known.items() if argument.is_file}
    for name, value in spec.environment.kwargs.items():
        field = f"environment.kwargs.{name}"
        if name in files:
            check.that(name in spec.data, field, f"is a file: name it under data, such as {_example(known[name])}")
        elif check.that(name in known, field, f"unknown argument; {_advice(name, known.keys() - files)}"):
            problem = _value_problem(known[name].default, value)
            check.that(not problem, field, problem)
    for name in filter(str.isidentifier, spec.data):
        check.that(name in files, f"data.{name}", f"{spec.environment.id} takes no such file; {_advice(name, files)}")
    for name, argument in known.items():
        if argument.required and name not in spec.data and name not in spec.environment.kwargs:
            field = f"data.{name}" if argument.is_file else f"environment.kwargs.{name}"
            check.that(False, field, f"is missing: {argument.meaning}; such as {_example(argument)}")


def _example(argument: ArgumentInfo) -> str:
    return f"{{{argument.name}: {argument.example}}}"


def _advice(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    nearest = difflib.get_close_matches(name, names, n=2)
    return f"did you mean {' or '.join(nearest)}?" if nearest else f"expected one of {', '.join(names)}"


def _value_problem(default: object, value: Any) -> str:
    """Why a value cannot stand where `default` does; of a default of None nothing is known."""
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
    """As a job file has it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"
