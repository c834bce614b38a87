"""Algorithms of installed packages.

A package adds one with an entry point, name = "its_package.catalogue:INFO", in the group `podracer.algorithms`. INFO
is an AlgorithmInfo whose name is the entry's. The module that has it is imported by services that have no torch, so it
must not import torch; the class that INFO.implementation names is imported by learner, worker and evaluator only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points

from podracer_core.catalogue.algorithm_info import AlgorithmInfo
from podracer_core.catalogue.entry_points import package_of

__all__ = ["ENTRY_POINT_GROUP", "InstalledAlgorithm", "installed_algorithms"]

ENTRY_POINT_GROUP = "podracer.algorithms"


@dataclass(frozen=True, slots=True)
class InstalledAlgorithm:
    """What an entry point leads to: an algorithm, or a `problem` that says what is wrong with which package."""

    name: str
    info: AlgorithmInfo | None
    problem: str = ""


def installed_algorithms(built_in: Iterable[str]) -> list[InstalledAlgorithm]:
    """What all installed packages offer. One that is broken has its problem said and leaves the others alone."""
    entries = list(entry_points(group=ENTRY_POINT_GROUP))
    taken = set(built_in)
    found = []
    for entry in entries:
        others = sorted({package_of(other) for other in entries if other.name == entry.name} - {package_of(entry)})
        if entry.name in taken:
            found.append(_broken(entry, "the name is a built-in algorithm's; choose another"))
        elif others:
            found.append(_broken(entry, f"{', '.join(others)} offers one of the same name; remove one of them"))
        else:
            found.append(_load(entry))
    return found


def _load(entry: EntryPoint) -> InstalledAlgorithm:
    try:
        info = entry.load()
    except Exception as error:  # noqa: BLE001 - another package's code may raise anything; it is reported, not hidden
        return _broken(entry, f"{entry.value} cannot be loaded: {type(error).__name__}: {error}")
    if not isinstance(info, AlgorithmInfo):
        return _broken(entry, f"{entry.value} is a {type(info).__name__}; expected an AlgorithmInfo")
    if info.name != entry.name:
        return _broken(entry, f"{entry.value} is named {info.name!r}; the entry point must have the same name")
    return InstalledAlgorithm(entry.name, replace(info, package=package_of(entry)))


def _broken(entry: EntryPoint, problem: str) -> InstalledAlgorithm:
    return InstalledAlgorithm(entry.name, None, f"algorithm {entry.name!r} of package {package_of(entry)}: {problem}")
