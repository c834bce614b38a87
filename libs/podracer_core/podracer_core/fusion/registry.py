"""The class behind a fusion's name, imported when it is asked for."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from podracer_core.catalogue.entry_points import package_of
from podracer_core.catalogue.fusions import ENTRY_POINT_GROUP, fusion_names
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.fusion.fusion import Fusion

__all__ = ["fusion_class"]


def fusion_class(name: str) -> type[Fusion]:
    """The class of the fusion called `name`, built in or of an installed package.

    Raises InvalidInput where there is none, where several packages offer one, where it cannot be imported, and where it
    is no `Fusion`.
    """
    found = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == name]
    if not found:
        raise _refused(f"no fusion {name!r} is installed; there are: {', '.join(fusion_names())}")
    packages = sorted({package_of(entry) for entry in found})
    if len(packages) > 1:
        raise _refused(f"fusion {name!r} is offered by {', '.join(packages)}; remove all but one of them")
    return _loaded(found[0])


def _loaded(entry: EntryPoint) -> type[Fusion]:
    described = f"fusion {entry.name!r} of package {package_of(entry)}: {entry.value}"
    try:
        loaded = entry.load()
    except Exception as error:  # what an installed package does when it is imported is not ours to foresee
        raise _refused(f"{described} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Fusion)):
        raise _refused(f"{described} is no {Fusion.__module__}.{Fusion.__name__}")
    return loaded


def _refused(problem: str) -> InvalidInput:
    violation = FieldViolation("pod.fusion.name", problem)
    return InvalidInput(problem, violations=[violation], reason="UNKNOWN_EXTENSION")
