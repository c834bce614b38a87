"""Values as a job file has them, and which hyperparameters are worth a look."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from podracer_core.catalogue import HyperparameterValue
from podracer_core.errors import InvalidInput

Hyperparameters = Mapping[str, HyperparameterValue]


def value_text(value: object) -> str:
    """A value as it is written in a job file."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case float() if not math.isfinite(value):
            return f"{value:g}".replace("inf", ".inf").replace("nan", ".nan")
        case float():
            return f"{int(value):_}" if value.is_integer() else f"{value:g}"
        case tuple() | list():
            return f"[{', '.join(map(value_text, value))}]"
        case str() if value:
            return value
        case _:
            return json.dumps(value)


def telling_names(agents: Iterable[tuple[str, Hyperparameters]]) -> dict[str, tuple[str, ...]]:
    """Names by algorithm: those that differ between its agents, then those that differ from their
    defaults."""
    groups: dict[str, list[Hyperparameters]] = {}
    for algorithm, values in agents:
        groups.setdefault(algorithm, []).append(values)
    return {
        algorithm: (*_differing(group), *_unusual(algorithm, group))
        for algorithm, group in groups.items()
    }


def differing_names(agents: Iterable[tuple[str, Hyperparameters]]) -> tuple[str, ...]:
    """Names that differ between agents of one algorithm, of all algorithms together; sorted."""
    groups: dict[str, list[Hyperparameters]] = {}
    for algorithm, values in agents:
        groups.setdefault(algorithm, []).append(values)
    return tuple(sorted({name for group in groups.values() for name in _differing(group)}))


def hyperparameter_text(value: HyperparameterValue) -> str:
    """A value as in a job file, real numbers with four digits."""
    return value_text(float(f"{value:.4g}") if isinstance(value, float) else value)


def hyperparameters_text(values: Hyperparameters, names: Iterable[str] | None = None) -> str:
    """`learning_rate 0.00031, gamma 0.98`; only `names`, in their order, where given."""
    chosen = sorted(values) if names is None else [name for name in names if name in values]
    return ", ".join(f"{name} {hyperparameter_text(values[name])}" for name in chosen)


def _differing(group: list[Hyperparameters]) -> list[str]:
    names = sorted({name for values in group for name in values})
    return [name for name in names if len({values.get(name) for values in group}) > 1]


def _unusual(algorithm: str, group: list[Hyperparameters]) -> list[str]:
    """Names with one value in the whole group, not the default; none if the algorithm is not
    installed here."""
    # late: the help of the commands needs none
    from podracer_core.catalogue import find_algorithm

    try:
        defaults = find_algorithm(algorithm).defaults()
    except InvalidInput:
        return []
    differing = set(_differing(group))
    first = group[0]
    return [
        name
        for name in sorted(first)
        if name not in differing and first[name] != defaults.get(name, first[name])
    ]
