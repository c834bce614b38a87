"""The class behind an algorithm's name, imported when it is asked for."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from podracer_core.catalogue.algorithms import AlgorithmInfo, find_algorithm
from podracer_core.errors import FieldViolation, InvalidInput

if TYPE_CHECKING:
    from podracer_core.algorithms.algorithm import Algorithm


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of the algorithm called `name`, built in or of an installed package.

    Raises InvalidInput, with the nearest names, if there is none, and if an installed package's class cannot be had.
    """
    from podracer_core.algorithms.algorithm import Algorithm

    info = find_algorithm(name)
    try:
        found = pkgutil.resolve_name(info.implementation)
    except Exception as error:
        if not info.package:
            raise
        raise _broken(info, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise _broken(info, f"is no {Algorithm.__module__}.{Algorithm.__name__}")
    return found


def _broken(info: AlgorithmInfo, problem: str) -> InvalidInput:
    message = f"algorithm {info.name!r} of package {info.package}: {info.implementation} {problem}"
    return InvalidInput(
        message, violations=[FieldViolation("algorithm", message)], reason="BROKEN_ALGORITHM", algorithm=info.name
    )
