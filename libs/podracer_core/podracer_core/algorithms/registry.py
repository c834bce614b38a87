"""Finds an algorithm by name: the built-in ones, and those of installed packages."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from podracer_core.errors import FieldViolation, InvalidInput

if TYPE_CHECKING:
    from podracer_core.algorithms.algorithm import Algorithm

ENTRY_POINT_GROUP = "podracer.algorithms"

_BUILT_IN = {"ppo": "podracer_core.algorithms.ppo:PPO"}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class called `name`. Raises InvalidInput, with the nearest names, if there is none."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast("type[Algorithm]", getattr(importlib.import_module(module), attribute))
    installed = entry_points(group=ENTRY_POINT_GROUP)
    if name in installed.names:
        return cast("type[Algorithm]", installed[name].load())
    known = sorted({*_BUILT_IN, *installed.names})
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known
    message = f"unknown algorithm {name!r}; did you mean {' or '.join(nearest)}?"
    raise InvalidInput(
        message, violations=[FieldViolation("algorithm", message)], reason="UNKNOWN_ALGORITHM", algorithm=name
    )
