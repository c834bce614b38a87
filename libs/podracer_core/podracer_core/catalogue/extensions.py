"""Classes that packages offer under an entry point."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from podracer_core.catalogue.built_in import package_of
from podracer_core.errors import FieldViolation, InvalidInput

Kind = TypeVar("Kind")


def load_class(group: str, name: str, kind: type[Kind], field: str, built_in: Sequence[EntryPoint] = ()) -> type[Kind]:
    """The subclass of `kind` called `name` in `group`, built in or of an installed package; `field` of a job names it.

    Raises InvalidInput where there is none, where several packages offer one, where it cannot be imported, and where it
    is no subclass of `kind`.
    """

    def refused(problem: str) -> InvalidInput:
        return InvalidInput(problem, violations=[FieldViolation(field, problem)], reason="UNKNOWN_EXTENSION")

    called = kind.__name__.lower()
    entries = [*built_in, *entry_points(group=group)]
    found = [entry for entry in entries if entry.name == name]
    if not found:
        known = ", ".join(sorted({entry.name for entry in entries}))
        raise refused(f"no {called} {name!r} is installed; there are: {known}")
    packages = sorted({package_of(entry) for entry in found})
    if len(packages) > 1:
        raise refused(f"{called} {name!r} is offered by {', '.join(packages)}; remove all but one of them")
    described = f"{called} {name!r} of package {packages[0]}: {found[0].value}"
    try:
        loaded = found[0].load()
    except Exception as error:  # what an installed package does when it is imported is not ours to foresee
        raise refused(f"{described} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise refused(f"{described} is no {kind.__module__}.{kind.__name__}")
    return loaded
