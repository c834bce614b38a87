"""Environments of installed packages.

A package adds one with an entry point, name = "its_package.envs:MyEnv", in the group `podracer.environments`: a
`VecEnvironment`, or whatever returns a `gymnasium.Env`. It is imported where agents act, never here.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from dataclasses import dataclass

from podracer_core.catalogue.entry_points import package_of
from podracer_core.catalogue.environments.info import EnvironmentInfo

__all__ = ["ENTRY_POINT_GROUP", "InstalledEnvironment", "installed_environments"]

ENTRY_POINT_GROUP = "podracer.environments"


@dataclass(frozen=True, slots=True)
class InstalledEnvironment:
    """What an entry point leads to: an environment, or a `problem` that says what is wrong with which package."""

    id: str
    info: EnvironmentInfo | None
    problem: str = ""


def installed_environments(built_in: Collection[str]) -> list[InstalledEnvironment]:
    """What all installed packages offer. One that is broken has its problem said and leaves the others alone."""
    # In a set: a distribution may be on sys.path twice.
    entries = {(entry.name, entry.value, package_of(entry)) for entry in _entry_points()}
    found = []
    for name, value, package in sorted(entries):
        others = sorted({other for same, _, other in entries if same == name} - {package})
        start = f"environment {name!r} of package {package}:"
        if name in built_in:
            problem = f"{start} the id is a built-in environment's; choose another"
        elif others:
            problem = f"{start} {', '.join(others)} offers one of the same id; remove one of them"
        else:
            info = EnvironmentInfo(name, f"installed: {value}", backend="installed", factory=value, package=package)
            found.append(InstalledEnvironment(name, info))
            continue
        found.append(InstalledEnvironment(name, None, problem))
    return found


def _entry_points() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
