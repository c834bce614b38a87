"""Observation and action spaces as plain values: comparable, hashable, JSON in and out, no torch
and no gymnasium."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from podracer_core.errors import InvalidInput

Bound = float | tuple[float, ...]

NO_BOUND = 1e30
"""Bounds of this size and more, such as the largest float32, mean that there is none."""


@dataclass(frozen=True, slots=True)
class BoxSpace:
    """Arrays of `shape` and NumPy `dtype` with inclusive bounds: one number for all, or one an
    element, row by row."""

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, tuple) and len(bound) != self.size:
                raise InvalidInput(
                    f"{name} has {len(bound)} numbers for a Box of {self.size}", shape=self.shape
                )

    @property
    def size(self) -> int:
        """The number of numbers in an element."""
        return math.prod(self.shape)

    @property
    def bounded(self) -> bool:
        """True if every number has a lower and an upper bound."""
        bounds = [
            bound if isinstance(bound, tuple) else (bound,) for bound in (self.low, self.high)
        ]
        return all(abs(number) < NO_BOUND for bound in bounds for number in bound)


@dataclass(frozen=True, slots=True)
class DiscreteSpace:
    """The integers start … start + n - 1."""

    n: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class MultiDiscreteSpace:
    """Vectors whose element j is in start[j] … start[j] + nvec[j] - 1; an empty `start` means
    zeros. `shape`: of an array of several axes, whose elements are counted row by row; else
    empty."""

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MultiBinarySpace:
    """Arrays of zeros and ones."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DictSpace:
    """Named spaces, in the order in which they are flattened."""

    spaces: tuple[tuple[str, Space], ...]


@dataclass(frozen=True, slots=True)
class TupleSpace:
    """A fixed sequence of spaces."""

    spaces: tuple[Space, ...]


ASYMMETRIC = ("actor", "critic")
"""The parts of a Dict of observations of which the actor sees the first, and the critic both."""

Space = BoxSpace | DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace | DictSpace | TupleSpace


def describe(space: Space) -> str:
    """A short name for a message: `Box(3,)`, `Discrete(2)`, `Dict(position: Box(3,), goal:
    Discrete(4))`."""
    match space:
        case BoxSpace(shape=shape):
            return f"Box{shape}"
        case DiscreteSpace(n=n):
            return f"Discrete({n})"
        case MultiDiscreteSpace(nvec=nvec, shape=shape):
            return f"MultiDiscrete({list(nvec)}{f', shape {shape}' if shape else ''})"
        case MultiBinarySpace(shape=shape):
            return f"MultiBinary{shape}"
        case DictSpace(spaces=named):
            return f"Dict({', '.join(f'{name}: {describe(inner)}' for name, inner in named)})"
        case TupleSpace(spaces=inner_spaces):
            return f"Tuple({', '.join(describe(inner) for inner in inner_spaces)})"


def seen_by_actor(space: Space) -> Space:
    """The part of an environment's observations that acting needs: all, or the first of
    `ASYMMETRIC`."""
    if isinstance(space, DictSpace) and tuple(name for name, _ in space.spaces) == ASYMMETRIC:
        return space.spaces[0][1]
    return space


def form_of(space: Space, *, bounds: bool) -> Space:
    """What of a space decides whether a network fits it: equal forms can have the same weights.

    `bounds`: keep them, as of actions, to which outputs are scaled; six digits, as float32 has.
    """
    match space:
        case BoxSpace(low, high, shape, dtype):
            kept_low, kept_high = (
                _six_digits(bound, space.size) if bounds else 0.0 for bound in (low, high)
            )
            return BoxSpace(kept_low, kept_high, shape, dtype if dtype == "uint8" else "float32")
        case DictSpace(named):
            return DictSpace(tuple((name, form_of(inner, bounds=bounds)) for name, inner in named))
        case TupleSpace(inner_spaces):
            return TupleSpace(tuple(form_of(inner, bounds=bounds) for inner in inner_spaces))
        case _:
            return space


def _six_digits(bound: Bound, count: int) -> tuple[float, ...]:
    every = bound if isinstance(bound, tuple) else (bound,) * count
    return tuple(float(f"{number:.6g}") for number in every)


def to_json(space: Space) -> dict[str, Any]:
    """A space as JSON values; infinite bounds become the strings "inf" and "-inf", which strict
    JSON can carry."""
    match space:
        case BoxSpace(low, high, shape, dtype):
            return {
                "kind": "box",
                "low": _bound_to_json(low),
                "high": _bound_to_json(high),
                "shape": list(shape),
                "dtype": dtype,
            }
        case DiscreteSpace(n, start):
            return {"kind": "discrete", "n": n, "start": start}
        case MultiDiscreteSpace(nvec, starts, shape):
            flat: dict[str, Any] = {
                "kind": "multi_discrete",
                "nvec": list(nvec),
                "start": list(starts),
            }
            return flat | ({"shape": list(shape)} if shape else {})
        case MultiBinarySpace(shape):
            return {"kind": "multi_binary", "shape": list(shape)}
        case DictSpace(named):
            return {"kind": "dict", "spaces": [[name, to_json(inner)] for name, inner in named]}
        case TupleSpace(inner_spaces):
            return {"kind": "tuple", "spaces": [to_json(inner) for inner in inner_spaces]}


def from_json(value: Mapping[str, Any]) -> Space:
    """The inverse of `to_json`. Raises InvalidInput for other values."""
    try:
        match value["kind"]:
            case "box":
                low, high = _bound_from_json(value["low"]), _bound_from_json(value["high"])
                return BoxSpace(
                    low, high, tuple(int(n) for n in value["shape"]), str(value["dtype"])
                )
            case "discrete":
                return DiscreteSpace(int(value["n"]), int(value["start"]))
            case "multi_discrete":
                lists = (value["nvec"], value["start"], value.get("shape", ()))
                return MultiDiscreteSpace(*(tuple(int(n) for n in numbers) for numbers in lists))
            case "multi_binary":
                return MultiBinarySpace(tuple(int(n) for n in value["shape"]))
            case "dict":
                return DictSpace(
                    tuple((str(name), from_json(inner)) for name, inner in value["spaces"])
                )
            case "tuple":
                return TupleSpace(tuple(from_json(inner) for inner in value["spaces"]))
            case kind:
                raise InvalidInput(f"unknown kind of space {kind!r}", kind=kind)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"not a space: {error!r}") from error


def _bound_to_json(bound: Bound) -> Any:
    if isinstance(bound, tuple):
        return [_bound_to_json(number) for number in bound]
    return bound if math.isfinite(bound) else str(bound)


def _bound_from_json(value: Any) -> Bound:
    return tuple(float(number) for number in value) if isinstance(value, list) else float(value)
