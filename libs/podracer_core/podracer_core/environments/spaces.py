"""Gymnasium's spaces as catalogue values and back, and how a batch shows them as plain arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym

from podracer_core.catalogue.spaces import (
    Bound,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
)
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from podracer_core.catalogue.environments import EnvironmentInfo


def from_gymnasium(space: gymnasium.Space[Any]) -> Space:
    """The catalogue's value for `space`; InvalidInput for kinds without a fixed size (Text, Graph, Sequence, OneOf)."""
    match space:
        case gym.Box():
            return BoxSpace(_bound(space.low), _bound(space.high), space.shape, space.dtype.name)
        case gym.Discrete():
            return DiscreteSpace(int(space.n), int(space.start))
        case gym.MultiDiscrete():
            start = tuple(int(n) for n in space.start.ravel())
            return MultiDiscreteSpace(tuple(int(n) for n in space.nvec.ravel()), start if any(start) else ())
        case gym.MultiBinary():
            return MultiBinarySpace(space.shape)
        case gym.Dict():
            return DictSpace(tuple((str(name), from_gymnasium(inner)) for name, inner in space.spaces.items()))
        case gym.Tuple():
            return TupleSpace(tuple(from_gymnasium(inner) for inner in space.spaces))
        case _:
            kind = type(space).__name__
            known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
            raise InvalidInput(f"a {kind} space has no fixed size; supported are {known}", space=kind)


def to_gymnasium(space: Space) -> gymnasium.Space[Any]:
    """The inverse of `from_gymnasium`."""
    match space:
        case BoxSpace(low, high, shape, dtype):
            kind = np.dtype(dtype)
            return gym.Box(
                np.broadcast_to(np.asarray(low, dtype=kind).reshape(shape if isinstance(low, tuple) else ()), shape),
                np.broadcast_to(np.asarray(high, dtype=kind).reshape(shape if isinstance(high, tuple) else ()), shape),
                dtype=kind.type,
            )
        case DiscreteSpace(n, start):
            return gym.Discrete(n, start=start)
        case MultiDiscreteSpace(nvec, starts):
            return gym.MultiDiscrete(np.array(nvec), start=np.array(starts or [0] * len(nvec)))
        case MultiBinarySpace(shape):
            return gym.MultiBinary(shape)
        case DictSpace(named):
            # A plain dict would be sorted by name; pairs keep the order in which the parts are flattened.
            return gym.Dict([(name, to_gymnasium(inner)) for name, inner in named])
        case TupleSpace(inner_spaces):
            return gym.Tuple([to_gymnasium(inner) for inner in inner_spaces])


def spaces_of(info: EnvironmentInfo) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Where a built-in environment observes and acts. Raises InvalidInput where that is known only once it runs."""
    if info.observation_space is None or info.action_space is None:
        raise InvalidInput(f"the spaces of {info.id} follow from its arguments")
    return to_gymnasium(info.observation_space), to_gymnasium(info.action_space)


def observation_array_space(space: gymnasium.Space[Any]) -> gym.Box:
    """What a batch shows of observations from `space`.

    A Box keeps its shape: uint8 stays, every other type becomes float32. All else is flattened into a float32 vector
    by `gymnasium.spaces.utils.flatten` (a Discrete part as one-hot).
    """
    if isinstance(space, gym.Box):
        if space.dtype == np.uint8:
            return space
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return gym.Box(low, high, space.shape, np.float32)
    from_gymnasium(space)  # refuses what has no fixed size
    size = gym.utils.flatdim(space)
    flat = gym.utils.flatten_space(space)
    if isinstance(flat, gym.Box) and flat.shape == (size,):
        return gym.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), (size,), np.float32)
    raise InvalidInput(f"observations of {space} cannot be flattened", space=space)


def action_array_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """`space` itself where a batch can act in it: Box, Discrete, and vectors of MultiDiscrete or MultiBinary."""
    if isinstance(space, gym.Box | gym.Discrete):
        return space
    if isinstance(space, gym.MultiDiscrete | gym.MultiBinary) and len(space.shape) == 1:
        return space
    message = f"actions in {space} are not supported; use Box, Discrete, or a vector of MultiDiscrete or MultiBinary"
    raise InvalidInput(message, reason="ACTION_SPACE_UNSUPPORTED", space=space)


def _bound(values: np.ndarray[Any, np.dtype[Any]]) -> Bound:
    flat = values.ravel()
    if flat.size and bool((flat == flat[0]).all()):
        return float(flat[0])
    return tuple(float(number) for number in flat)
