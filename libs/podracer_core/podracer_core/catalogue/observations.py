"""How a network sees observations of Dict, Tuple and other spaces: their parts, one after the other in a flat row.

The rows are those of `gymnasium.spaces.flatten`: parts in the order of the space, discrete values one-hot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
    describe,
)
from podracer_core.errors import InvalidInput

WHOLE = "observation"
"""The name of the one part of an observation without parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an observation. `name`: its keys and numbers from the outside in, as in "arm/0". `offset`: the place of
    its first number in the flat row."""

    name: str
    space: BoxSpace | DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a value in the environment."""
        match self.space:
            case DiscreteSpace():
                return ()
            case MultiDiscreteSpace(nvec, _, shape):
                return shape or (len(nvec),)
            case BoxSpace(shape=shape) | MultiBinarySpace(shape=shape):
                return shape

    @property
    def choices(self) -> list[range]:
        """The values at each place, which become one-hot; empty for plain numbers."""
        match self.space:
            case DiscreteSpace(n, start):
                return [range(start, start + n)]
            case MultiDiscreteSpace(nvec, starts):
                return [range(start, start + n) for n, start in zip(nvec, starts or [0] * len(nvec), strict=True)]
            case _:
                return []

    @property
    def size(self) -> int:
        """Numbers in the flat row."""
        return sum(map(len, self.choices)) if self.choices else math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """For programs that make the flat row themselves. `kind`: as in `catalogue.spaces.to_json`, or "one_hot"."""
        words = {"name": self.name, "offset": self.offset, "size": self.size, "shape": list(self.shape)}
        if not self.choices:
            return words | {"kind": "numbers"}
        return words | {"kind": "one_hot", "first": [each.start for each in self.choices]}

    def __str__(self) -> str:
        numbers = f"{self.size:,} number{'' if self.size == 1 else 's'}"
        dimensions = "×".join(map(str, self.shape))
        if self.choices or len(self.shape) < 2 or not self.size:
            words = f"one-hot, {numbers}" if self.choices else numbers
        elif getattr(self.space, "dtype", "") == "uint8" and len(self.shape) <= 3:
            words = f"an image {dimensions}: flattened into {numbers}; use a Box of three axes alone for convolutions"
        else:
            words = f"an array {dimensions}: flattened into {numbers}"
        return f"{self.name} ({words})"


def parts_of(space: Space) -> list[Part]:
    """The parts in the order of the flat row."""
    parts: list[Part] = []
    for name, leaf in _leaves(space, ""):
        parts.append(Part(name or WHOLE, leaf, parts[-1].offset + parts[-1].size if parts else 0))
    return parts


def named_values(observation: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an observation by the names of their parts."""
    if isinstance(observation, Mapping | tuple):
        pairs = observation.items() if isinstance(observation, Mapping) else enumerate(observation)
        for key, value in pairs:
            yield from named_values(value, f"{name}/{key}" if name else str(key))
    else:
        yield name or WHOLE, observation


def flat_rows(space: Space, observation: Any) -> tuple[NDArray[np.float32], bool]:
    """Rows [B, size] of an observation as the environment gives it, or of a batch, in which each part is [B, *shape];
    and whether it was a single one. Without any numbers size is 1: a constant 0. Raises InvalidInput, with the part."""
    parts, values = parts_of(space), dict(named_values(observation))
    if sorted(values) != sorted(part.name for part in parts):
        found = f"got the parts {', '.join(values) or 'none'}"
        hint = "; gymnasium.spaces.flatten makes one array" if isinstance(space, BoxSpace) else ""
        raise InvalidInput(f"observation: expected {describe(space)}, {found}{hint}")
    arrays = [(part, _array(part, values[part.name])) for part in parts]
    counts = {None if array.shape == part.shape else len(array) for part, array in arrays}
    if len(counts) > 1:
        found = ", ".join(f"{list(array.shape)} of {part.name}" for part, array in arrays)
        raise InvalidInput(f"observation: expected one row of each part or B rows of each, got {found}")
    count = next(iter(counts), None)
    rows = 1 if count is None else count
    flat = [_flat(part, array.reshape(rows, math.prod(part.shape))) for part, array in arrays if part.size]
    return np.concatenate(flat or [np.zeros((rows, 1))], axis=1).astype(np.float32), count is None


def treatment(space: Space) -> str:
    """How a network sees observations of `space`, as a line for people; empty for a plain vector."""
    if isinstance(space, BoxSpace) and len(space.shape) == 1 and space.size:
        return ""
    if isinstance(space, BoxSpace) and len(space.shape) == 3 and space.dtype == "uint8":
        return f"the policy sees an image {'×'.join(map(str, space.shape))} by convolutions"
    parts = parts_of(space)
    nothing = "" if any(part.size for part in parts) else "a constant 0: "
    return f"the policy sees {nothing}{', '.join(map(str, parts)) or 'the observation is empty'}"


def _leaves(space: Space, name: str) -> Iterator[tuple[str, Any]]:
    match space:
        case DictSpace(named):
            inside = list(named)
        case TupleSpace(spaces):
            inside = [(str(place), inner) for place, inner in enumerate(spaces)]
        case _:
            yield name, space
            return
    for key, inner in inside:
        yield from _leaves(inner, f"{name}/{key}" if name else key)


def _array(part: Part, value: Any) -> NDArray[Any]:
    """Checked: [*shape] or [B, *shape]."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInput(f"{part.name}: expected an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{part.name}: expected numbers, got an array of {array.dtype}")
    if array.shape != part.shape and (array.ndim == 0 or array.shape[1:] != part.shape):
        right = ", ".join(map(str, part.shape))
        expected = f"expected the shape [{right}] or [{', '.join(filter(None, ('B', right)))}]"
        raise InvalidInput(f"{part.name}: {expected}, got {list(array.shape)}")
    return array


def _flat(part: Part, values: NDArray[Any]) -> NDArray[Any]:
    """[B, values] -> [B, part.size]."""
    columns = []
    for column, choice in zip(values.T, part.choices, strict=False):
        hot = column[:, None] == np.arange(choice.start, choice.stop)
        if not hot.any(1).all():
            found = column[~hot.any(1)][0]
            raise InvalidInput(f"{part.name}: expected a whole number from {choice[0]} to {choice[-1]}, got {found}")
        columns.append(hot)
    return np.concatenate(columns, axis=1) if columns else values
