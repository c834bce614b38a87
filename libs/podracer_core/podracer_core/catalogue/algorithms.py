"""Which algorithms there are, built in and installed, and in which action spaces they can act."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from types import MappingProxyType

from podracer_core.catalogue.algorithm_info import AlgorithmInfo
from podracer_core.catalogue.built_in import BuiltIn
from podracer_core.catalogue.installed_algorithms import InstalledAlgorithm, installed_algorithms
from podracer_core.catalogue.spaces import BoxSpace, MultiBinarySpace, Space, describe
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = [
    "BUILT_IN",
    "AlgorithmInfo",
    "automatic_algorithms",
    "broken_algorithms",
    "check_action_space",
    "find_algorithm",
    "known_algorithms",
]

BUILT_IN: Mapping[str, AlgorithmInfo] = BuiltIn(
    "name",
    "podracer_core.algorithms.on_policy_info",
    "podracer_core.algorithms.dqn_info",
    "podracer_core.algorithms.actor_critic_info",
)


@functools.cache
def known_algorithms() -> Mapping[str, AlgorithmInfo]:
    """Name → algorithm: the built-in ones, then those of installed packages that are sound."""
    installed = {found.name: found.info for found in _installed() if found.info is not None}
    return MappingProxyType({**BUILT_IN, **installed})


def broken_algorithms() -> list[str]:
    """A message, which names the package, for each algorithm that an installed package offers in vain."""
    return [found.problem for found in _installed() if found.problem]


def find_algorithm(name: str) -> AlgorithmInfo:
    """The algorithm called `name`; InvalidInput if there is none, with the nearest names, or if it is broken."""
    if name in BUILT_IN:  # without a look at what is installed: most jobs need no more
        return BUILT_IN[name]
    known = known_algorithms()
    if name in known:
        return known[name]
    problem = next((found.problem for found in _installed() if found.name == name), "")
    if problem:
        raise _refused(problem, "BROKEN_ALGORITHM", name)
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
    raise _refused(f"unknown algorithm {name!r}; did you mean {' or '.join(nearest)}?", "UNKNOWN_ALGORITHM", name)


def automatic_algorithms(space: Space | None) -> list[str]:
    """What `search.algorithms: auto` stands for in an action space (None: in any)."""
    automatic = [info for info in known_algorithms().values() if info.automatic]
    return [info.name for info in automatic if space is None or not _problem(info, space)]


def check_action_space(algorithm: str, space: Space) -> None:
    """InvalidInput, saying what would be right, unless `algorithm` can act in `space`."""
    problem = _problem(find_algorithm(algorithm), space)
    if problem:
        capable = [name for name, info in known_algorithms().items() if not _problem(info, space)]
        if capable:
            problem += f"; {' or '.join(capable)} can"
        raise _refused(problem, "ACTION_SPACE_UNSUPPORTED", algorithm)


@functools.cache
def _installed() -> list[InstalledAlgorithm]:
    return installed_algorithms(BUILT_IN)


def _problem(info: AlgorithmInfo, space: Space) -> str:
    """Why an algorithm cannot act in `space`; empty if it can."""
    cannot = f"{info.name} cannot act in"
    if not isinstance(space, info.action_spaces):
        return f"{cannot} {describe(space)}; it acts in {_spaces(info)}"
    match space:
        case BoxSpace(dtype=dtype) if not dtype.startswith("float"):
            return f"{cannot} a Box of {dtype}; it acts in a Box of float"
        case BoxSpace(size=0):
            return f"{cannot} an empty {describe(space)}"
        case BoxSpace(bounded=False) if info.bounded_actions:
            return f"{cannot} {describe(space)} without bounds; it needs finite bounds, low and high, of every action"
        case MultiBinarySpace(shape=shape) if len(shape) != 1:
            return f"{cannot} {describe(space)}; it acts in a vector of bits"
    return ""


def _spaces(info: AlgorithmInfo) -> str:
    names = [kind.__name__.removesuffix("Space") for kind in info.action_spaces]
    if info.bounded_actions:
        names = ["a bounded Box" if name == "Box" else name for name in names]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _refused(message: str, reason: str, algorithm: str) -> InvalidInput:
    violation = FieldViolation("search.algorithms", message)
    return InvalidInput(message, violations=[violation], reason=reason, algorithm=algorithm)
