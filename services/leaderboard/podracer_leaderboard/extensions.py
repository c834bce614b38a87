"""Generators and updaters of installed packages, found by their entry points."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import TypeVar

from podracer_core.errors import FieldViolation, InvalidInput

Extension = TypeVar("Extension")


def load_extension(group: str, name: str, kind: type[Extension], field: str) -> type[Extension]:
    """The class that an installed package offers under `name`; `field` is where the name was given.

    Raises InvalidInput where there is none, where it cannot be imported, or where it is no subclass of `kind`.
    """
    found = _entry_points(group)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise _refuse(field, f"no {kind.__name__.lower()} {name!r} is installed; there are: {known}")
    try:
        loaded = found[name].load()
    except Exception as error:  # what an installed package does when it is imported is not ours to foresee
        problem = f"{found[name].value} cannot be imported: {type(error).__name__}: {error}"
        raise _refuse(field, problem) from error
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise _refuse(field, f"{found[name].value} is no {kind.__module__}.{kind.__name__}")
    return loaded


@functools.cache
def _entry_points(group: str) -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=group)


def _refuse(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)], reason="UNKNOWN_EXTENSION")
