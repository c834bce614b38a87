"""How a network sees observations of Dict, Tuple and other spaces: their parts, one after the other
in a flat row.

The rows are those of `gymnasium.spaces.flatten`: parts in the order of the space, discrete values
one-hot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue import spaces
from podracer_core.errors import InvalidInput

WHOLE = "observation"
"""The name of the one part of an observation without parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an observation, and its place in the flat row.

    name     its keys and numbers from the outside in, as in "arm/0"
    offset   of its first number; `size`: how many it has
    shape    of a value in the environment
    choices  the values at each place, which become one-hot; empty for plain numbers
    """

    name: str
    space: spaces.Space
    offset: int
    size: int
    shape: tuple[int, ...]
    choices: tuple[range, ...]

    def to_json(self) -> dict[str, Any]:
        """For programs that make the flat row themselves. `first`: the value at each place whose
        number comes first."""
        words = {
            "name": self.name,
            "offset": self.offset,
            "size": self.size,
            "shape": list(self.shape),
        }
        first = {"kind": "one_hot", "first": [each.start for each in self.choices]}
        return words | (first if self.choices else {"kind": "numbers"})

    def __str__(self) -> str:
        words = (
            f"{'one-hot, ' if self.choices else ''}{self.size:,} "
            f"number{'' if self.size == 1 else 's'}"
        )
        if len(self.shape) > 1 and not self.choices and self.size:
            is_image = len(self.shape) == 3 or (
                getattr(self.space, "dtype", "") == "uint8" and len(self.shape) == 2
            )
            hint = (
                "; convolutions read a uint8 Box of three axes that is the whole observation"
                if is_image
                else ""
            )
            kind = "an image" if is_image else "an array"
            words = f"{kind} {'×'.join(map(str, self.shape))}, flattened into {words}{hint}"
        return f"{self.name} ({words})"


def parts_of(space: spaces.Space) -> list[Part]:
    """The parts in the order of the flat row."""
    parts: list[Part] = []
    offset = 0
    for name, leaf in named_values(_tree(space)):
        shape, choices = _form(leaf)
        size = sum(each.stop - each.start for each in choices) if choices else math.prod(shape)
        parts.append(Part(name, leaf, offset, size, shape, choices))
        offset += size
    return parts


def named_values(observation: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an observation by the names of their parts."""
    if isinstance(observation, Mapping | tuple):
        pairs = observation.items() if isinstance(observation, Mapping) else enumerate(observation)
        for key, value in pairs:
            yield from named_values(value, f"{name}/{key}".removeprefix("/"))
    else:
        yield name or WHOLE, observation


def origin_array(origin: Sequence[float], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """`EnvironmentSpec.observation_origin` for arrays of `shape`: zeros for the numbers that it
    does not reach."""
    size = math.prod(shape)
    return np.array([*origin, *[0.0] * size][:size]).reshape(shape)


def flat_rows(space: spaces.Space, observation: Any) -> tuple[NDArray[np.float64], bool]:
    """Rows [B, size] of an observation as the environment gives it, or of a batch, in which each
    part is [B, *shape]; and whether it was a single one. Without any numbers size is 1: a constant
    0. Raises InvalidInput, with the part."""
    parts, given = parts_of(space), dict(named_values(observation))
    names = {part.name for part in parts}
    values = {
        name: value for name, value in given.items() if name in names or not isinstance(value, str)
    }
    if set(values) != names:
        found = f"got the parts {', '.join(values) or 'none'}"
        hint = (
            "; gymnasium.spaces.flatten makes one array"
            if isinstance(space, spaces.BoxSpace)
            else ""
        )
        raise InvalidInput(f"observation: expected {spaces.describe(space)}, {found}{hint}")
    arrays = [(part, _array(part, values[part.name])) for part in parts]
    counts = [None if array.shape == part.shape else len(array) for part, array in arrays] or [None]
    if len(set(counts)) > 1:
        found = ", ".join(f"{list(array.shape)} of {part.name}" for part, array in arrays)
        raise InvalidInput(
            f"observation: expected one row of each part or B rows of each, got {found}"
        )
    rows = 1 if counts[0] is None else counts[0]
    flat = [
        _flat(part, array.reshape(rows, math.prod(part.shape)))
        for part, array in arrays
        if part.size
    ]
    return np.concatenate(flat or [np.zeros((rows, 1))], axis=1).astype(np.float64), counts[
        0
    ] is None


def treatment(space: spaces.Space, origin: Sequence[float] = ()) -> str:
    """How a network sees observations of `space`, as a line for people; empty for a plain vector
    without an `origin` (`EnvironmentSpec.observation_origin`)."""
    if shown := [
        f"number {place} minus {value:.12g}" for place, value in enumerate(origin) if value
    ]:
        less = (
            f"{', '.join(shown[:3])}{', …' if shown[3:] else ''}: float32 could not tell its "
            "values apart"
        )
        return f"{treatment(space) or 'the policy sees the observation'}; {less}"
    if isinstance(space, spaces.BoxSpace) and len(space.shape) == 1 and space.size:
        return ""
    if isinstance(space, spaces.BoxSpace) and len(space.shape) == 3 and space.dtype == "uint8":
        return f"the policy sees an image {'×'.join(map(str, space.shape))} by convolutions"
    seen = spaces.seen_by_actor(space)
    if seen is not space:
        return (
            f"{treatment(seen) or f'the policy sees {spaces.describe(seen)}'}; the critic sees "
            "all of it and more"
        )
    parts = parts_of(space)
    nothing = "" if any(part.size for part in parts) else "a constant 0: "
    return f"the policy sees {nothing}{', '.join(map(str, parts)) or 'the observation is empty'}"


def _tree(space: spaces.Space) -> Any:
    match space:
        case spaces.DictSpace(named):
            return {name: _tree(inner) for name, inner in named}
        case spaces.TupleSpace(inner_spaces):
            return tuple(map(_tree, inner_spaces))
        case _:
            return space


def _form(space: spaces.Space) -> tuple[tuple[int, ...], tuple[range, ...]]:
    """`Part.shape` and `Part.choices`."""
    match space:
        case spaces.DiscreteSpace(n, start):
            return (), (range(start, start + n),)
        case spaces.MultiDiscreteSpace(nvec, starts, shape):
            pairs = zip(nvec, starts or (0,) * len(nvec), strict=True)
            return shape or (len(nvec),), tuple(range(start, start + n) for n, start in pairs)
        case spaces.BoxSpace(shape=shape) | spaces.MultiBinarySpace(shape=shape):
            return shape, ()
        case _:
            raise InvalidInput(f"{spaces.describe(space)} has parts of its own")


def _array(part: Part, value: Any) -> NDArray[Any]:
    """Checked: [*shape] or [B, *shape]."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInput(f"{part.name}: expected an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{part.name}: expected numbers, got an array of {array.dtype}")
    if array.shape != part.shape and (array.ndim == 0 or array.shape[1:] != part.shape):
        expected = f"the shape {list(part.shape)} or {['B', *part.shape]}".replace("'", "")
        raise InvalidInput(f"{part.name}: expected {expected}, got {list(array.shape)}")
    return array


def _flat(part: Part, values: NDArray[Any]) -> NDArray[Any]:
    """[B, values] -> [B, part.size]."""
    columns = []
    for column, choice in zip(values.T, part.choices, strict=False):
        hot = column[:, None] == np.arange(choice.start, choice.stop)
        if not hot.any(1).all():
            found = column[~hot.any(1)][0]
            raise InvalidInput(
                f"{part.name}: expected a whole number from {choice[0]} to {choice[-1]}, got "
                f"{found}"
            )
        columns.append(hot)
    return np.concatenate(columns, axis=1) if columns else values
