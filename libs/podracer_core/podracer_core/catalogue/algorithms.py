"""The built-in and installed algorithms, and the action spaces in which they can act."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from podracer_core.catalogue.extensions import BuiltIn, package_of
from podracer_core.catalogue.hyperparameters import Hyperparameter, Scope
from podracer_core.catalogue.spaces import (
    BoxSpace,
    MultiBinarySpace,
    Space,
    describe,
    seen_by_actor,
)
from podracer_core.config import advice
from podracer_core.errors import InvalidInput

ENTRY_POINT_GROUP = "podracer.algorithms"
"""A package adds an algorithm with an entry point, name = "its_package.catalogue:INFO". INFO is an
AlgorithmInfo whose name is the entry's. The module that has it is imported by services that have no
torch, so it must not import torch; the class that INFO.implementation names is imported by learner,
worker and evaluator only."""


@dataclass(frozen=True, slots=True)
class InstalledAlgorithm:
    """The result of loading an entry point: an algorithm, or a `problem` that names the package."""

    name: str
    info: AlgorithmInfo | None
    problem: str = ""


def installed_algorithms(built_in: Iterable[str]) -> list[InstalledAlgorithm]:
    """The algorithms of all installed packages. A broken one has a `problem` and does not affect
    the others."""
    entries = list(entry_points(group=ENTRY_POINT_GROUP))
    taken = set(built_in)
    found = []
    for entry in entries:
        others = sorted(
            {package_of(other) for other in entries if other.name == entry.name}
            - {package_of(entry)}
        )
        if entry.name in taken:
            found.append(_broken(entry, "the name is a built-in algorithm's; choose another"))
        elif others:
            found.append(
                _broken(
                    entry, f"{', '.join(others)} offers one of the same name; remove one of them"
                )
            )
        else:
            found.append(_load(entry))
    return found


def _load(entry: EntryPoint) -> InstalledAlgorithm:
    try:
        info = entry.load()
    except Exception as error:  # noqa: BLE001 - another package's code may raise anything; it is reported, not hidden
        return _broken(entry, f"{entry.value} cannot be loaded: {type(error).__name__}: {error}")
    if not isinstance(info, AlgorithmInfo):
        return _broken(
            entry, f"{entry.value} is a {type(info).__name__}; expected an AlgorithmInfo"
        )
    if info.name != entry.name:
        return _broken(
            entry, f"{entry.value} is named {info.name!r}; the entry point must have the same name"
        )
    return InstalledAlgorithm(entry.name, replace(info, package=package_of(entry)))


def _broken(entry: EntryPoint, problem: str) -> InstalledAlgorithm:
    return InstalledAlgorithm(
        entry.name, None, f"algorithm {entry.name!r} of package {package_of(entry)}: {problem}"
    )


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_IMPLEMENTATION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """The description of an algorithm, without torch. Raises InvalidInput for an invalid one.

    name             lower case, digits and _; the name in a job file
    paper            "Authors year, title, where"; of several papers with "; " between them
    action_spaces    the kinds of space (BoxSpace, DiscreteSpace, …) in which it can act
    implementation   "package.module:Class", a podracer_core.algorithms.algorithm.Algorithm;
                     imported where torch is
    bounded_actions  of Box spaces only those with finite bounds
    automatic        takes part in `search.algorithms: auto`
    summary          one sentence on its distinguishing feature
    package          the installed package with it, set when it is found; empty for a built-in one
    """

    name: str
    title: str
    paper: str
    on_policy: bool
    action_spaces: tuple[type, ...]
    hyperparameters: tuple[Hyperparameter, ...]
    implementation: str
    bounded_actions: bool = False
    automatic: bool = False
    summary: str = ""
    package: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"{self.name!r} is no name of an algorithm: lower-case letters, digits and _ are"
            )
        if not _IMPLEMENTATION.fullmatch(self.implementation):
            raise InvalidInput(
                f"{self.name}: implementation {self.implementation!r} is not package.module:Class"
            )
        names = [knob.name for knob in self.hyperparameters]
        for knob in self.hyperparameters:
            knob.check(knob.default)
            if names.count(knob.name) > 1:
                raise InvalidInput(f"{self.name} has two hyperparameters {knob.name}")
            if knob.scope == "member" and knob.kind != "float":
                raise InvalidInput(
                    f"{self.name}.{knob.name}: members differ in real numbers only, not in "
                    f"{knob.kind}"
                )

    def hyperparameter(self, name: str) -> Hyperparameter:
        """The hyperparameter `name`. Raises InvalidInput with the nearest names if there is
        none."""
        for candidate in self.hyperparameters:
            if candidate.name == name:
                return candidate
        names = [candidate.name for candidate in self.hyperparameters]
        message = f"{self.name} has no hyperparameter {name!r}; {advice(name, names)}"
        raise InvalidInput(message, field=name, hyperparameter=name)

    def defaults(self, *scopes: Scope) -> dict[str, Any]:
        """Name → default of the hyperparameters in `scopes`, or of all."""
        return {
            knob.name: knob.default
            for knob in self.hyperparameters
            if not scopes or knob.scope in scopes
        }

    def former_defaults(self) -> dict[str, Any]:
        """Name → what an agent had, that was made before there was this hyperparameter."""
        return {
            knob.name: knob.default if knob.former is None else knob.former
            for knob in self.hyperparameters
        }


BUILT_IN_ALGORITHMS: Mapping[str, AlgorithmInfo] = BuiltIn("name", "podracer_core.algorithms.info")


@functools.cache
def known_algorithms() -> Mapping[str, AlgorithmInfo]:
    """Name → algorithm: the built-in ones, then those of installed packages that are sound."""
    installed = {found.name: found.info for found in _installed() if found.info is not None}
    return MappingProxyType({**BUILT_IN_ALGORITHMS, **installed})


def broken_algorithms() -> list[str]:
    """A message that names the package for each broken algorithm of an installed package."""
    return [found.problem for found in _installed() if found.problem]


def find_algorithm(name: str) -> AlgorithmInfo:
    """The algorithm `name`. Raises InvalidInput with the nearest names if there is none, or if it
    is broken."""
    if name in BUILT_IN_ALGORITHMS:  # without a look at what is installed: most jobs need no more
        return BUILT_IN_ALGORITHMS[name]
    known = known_algorithms()
    if name in known:
        return known[name]
    problem = next((found.problem for found in _installed() if found.name == name), "")
    if problem:
        raise _refused(problem, "BROKEN_ALGORITHM", name)
    raise _refused(
        f"unknown algorithm {name!r}; {advice(name, known, most=3)}", "UNKNOWN_ALGORITHM", name
    )


def automatic_algorithms(space: Space | None) -> list[str]:
    """The algorithms of `search.algorithms: auto` in an action space (None: in any)."""
    automatic = [info for info in known_algorithms().values() if info.automatic]
    return [info.name for info in automatic if space is None or not _problem(info, space)]


def check_action_space(algorithm: str, space: Space) -> None:
    """Raises InvalidInput with the supported spaces, unless `algorithm` can act in `space`."""
    problem = _problem(find_algorithm(algorithm), space)
    if problem:
        capable = [name for name, info in known_algorithms().items() if not _problem(info, space)]
        if capable:
            problem += f"; {' or '.join(capable)} can"
        raise _refused(problem, "ACTION_SPACE_UNSUPPORTED", algorithm)


def check_observation_space(algorithm: str, space: Space) -> None:
    """Raises InvalidInput where the critic is to see more than the actor, and `algorithm` does not
    support it."""
    if seen_by_actor(space) is not space and not find_algorithm(algorithm).on_policy:
        message = (
            "in this environment the critic sees more than the actor: use ppo or a2c, "
            f"{algorithm} is not able to"
        )
        raise _refused(message, "OBSERVATION_SPACE_UNSUPPORTED", algorithm)


@functools.cache
def _installed() -> list[InstalledAlgorithm]:
    return installed_algorithms(BUILT_IN_ALGORITHMS)


def _problem(info: AlgorithmInfo, space: Space) -> str:
    """Why an algorithm cannot act in `space`; empty if it can."""
    cannot = f"{info.name} cannot act in"
    if not isinstance(space, info.action_spaces):
        return f"{cannot} {describe(space)}; it acts in {_spaces(info)}"
    match space:
        case BoxSpace(dtype=dtype) if not dtype.startswith("float"):
            return (
                f"{cannot} a Box of {dtype}; it acts in a Box of float, or whole numbers as a "
                "MultiDiscrete"
            )
        case BoxSpace(size=0):
            return f"{cannot} an empty {describe(space)}; an action has one number or more"
        case BoxSpace(bounded=False) if info.bounded_actions:
            return (
                f"{cannot} {describe(space)} without bounds; it needs finite bounds, low and "
                "high, of every action"
            )
        case MultiBinarySpace(shape=shape) if len(shape) != 1:
            return f"{cannot} {describe(space)}; it acts in a vector of bits"
    return ""


def _spaces(info: AlgorithmInfo) -> str:
    names = [kind.__name__.removesuffix("Space") for kind in info.action_spaces]
    if info.bounded_actions:
        names = ["a bounded Box" if name == "Box" else name for name in names]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _refused(message: str, reason: str, algorithm: str) -> InvalidInput:
    return InvalidInput(message, field="search.algorithms", reason=reason, algorithm=algorithm)
