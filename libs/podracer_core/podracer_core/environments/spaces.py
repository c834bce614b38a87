"""Gymnasium's spaces as catalogue values and back, how a batch shows them as plain arrays, and
masks of actions.

A user's environment can tell its allowed actions in two ways: `info["action_mask"]` of reset and
step, as in Gymnasium's own Taxi; or a method `action_masks()` of the environment or of a wrapper
around it, as in sb3-contrib, which then takes precedence. A mask is one row of flags, 1 where an
action is allowed: n of them in Discrete(n); in MultiDiscrete one part after the other, or a
sequence of one row per part. Neither torch nor user code is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from podracer_core.catalogue import (
    ASYMMETRIC,
    NO_BOUND,
    Bound,
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

if TYPE_CHECKING:
    from podracer_core.catalogue import EnvironmentInfo


def from_gymnasium(space: gymnasium.Space[Any], name: str = "") -> Space:
    """The catalogue's value for `space`; InvalidInput for kinds without a fixed size (Text, Graph,
    Sequence, OneOf). `name`: of the part that it is, "/arm/0"."""
    match space:
        case gym.Box():
            return BoxSpace(_bound(space.low), _bound(space.high), space.shape, space.dtype.name)
        case gym.Discrete():
            return DiscreteSpace(int(space.n), int(space.start))
        case gym.MultiDiscrete():
            nvec, start = (
                tuple(int(n) for n in numbers.ravel()) for numbers in (space.nvec, space.start)
            )
            return MultiDiscreteSpace(
                nvec, start if any(start) else (), space.shape if len(space.shape) > 1 else ()
            )
        case gym.MultiBinary():
            return MultiBinarySpace(space.shape)
        case gym.Dict():
            return DictSpace(
                tuple(
                    (str(key), from_gymnasium(inner, f"{name}/{key}"))
                    for key, inner in space.items()
                )
            )
        case gym.Tuple():
            parts = enumerate(space.spaces)
            return TupleSpace(tuple(from_gymnasium(inner, f"{name}/{key}") for key, inner in parts))
        case _:
            kind = type(space).__name__
            known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
            advice = next((text for cls, text in _ADVICE.items() if isinstance(space, cls)), "")
            where = f"part {name[1:]}: " if name else ""
            message = f"{where}a {kind} space has no fixed size; {advice}supported are {known}"
            raise InvalidInput(message, space=kind, part=name)


_ADVICE: dict[type[gymnasium.Space[Any]], str] = {
    gym.Text: "leave it out or encode it as numbers; ",
    gym.Sequence: "pad it to a Box of a fixed length; ",
    gym.Graph: "give nodes and edges as Boxes of fixed sizes; ",
    gym.OneOf: "use a Dict with a part for each alternative and a Discrete for which it is; ",
}


def to_gymnasium(space: Space) -> gymnasium.Space[Any]:
    """The inverse of `from_gymnasium`. Raises InvalidInput for a space that cannot be, such as one
    of no actions."""
    try:
        return _made(space)
    except (AssertionError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"there is no space {describe(space)[:200]}: {error}") from error


def _made(space: Space) -> gymnasium.Space[Any]:
    match space:
        case BoxSpace(low, high, shape, dtype):
            kind = np.dtype(dtype)
            return gym.Box(_limits(low, shape, kind), _limits(high, shape, kind), dtype=kind.type)
        case DiscreteSpace(n, start):
            return gym.Discrete(n, start=start)
        case MultiDiscreteSpace(nvec, starts, shape):
            counts, first = np.array(nvec), np.array(starts or [0] * len(nvec))
            return gym.MultiDiscrete(counts.reshape(shape or -1), start=first.reshape(shape or -1))
        case MultiBinarySpace(shape):
            return gym.MultiBinary(shape)
        case DictSpace(named):
            # A plain dict would be sorted by name; pairs keep the order in which the parts are
            # flattened.
            return gym.Dict([(name, to_gymnasium(inner)) for name, inner in named])
        case TupleSpace(inner_spaces):
            return gym.Tuple([to_gymnasium(inner) for inner in inner_spaces])


def spaces_of(info: EnvironmentInfo) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The observation and action spaces of a built-in environment. Raises InvalidInput if they are
    known only once it runs."""
    if info.observation_space is None or info.action_space is None:
        raise InvalidInput(f"the spaces of {info.id} follow from its arguments")
    return to_gymnasium(info.observation_space), to_gymnasium(info.action_space)


class AsymmetricBox(gym.Box):
    """A Box of one axis of which the actor sees the first `actor_size` numbers, and the critic
    all."""

    def __init__(self, low: NDArray[Any], high: NDArray[Any], actor_size: int) -> None:
        super().__init__(low, high, low.shape, np.float32)
        self.actor_size = actor_size


def observation_array_space(space: gymnasium.Space[Any]) -> gym.Box:
    """The space of a batch's observations from `space`.

    A Box keeps its shape: uint8 stays, every other type becomes float32. Everything else, and a Box
    without axes, is flattened into a float32 vector by `gymnasium.spaces.utils.flatten` (a Discrete
    part as one-hot). An observation without numbers becomes a constant 0. Of a Dict of `ASYMMETRIC`
    parts it is an `AsymmetricBox`."""
    if isinstance(space, AsymmetricBox):
        return space
    if isinstance(space, gym.Box) and space.shape and space.low.size:
        if space.dtype == np.uint8:
            return space
        with np.errstate(over="ignore"):  # 1e300 is a bound
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return gym.Box(low, high, space.shape, np.float32)
    from_gymnasium(space)  # refuses what has no fixed size
    size = gym.utils.flatdim(space)
    if not size:
        return gym.Box(0.0, 0.0, (1,), np.float32)
    try:
        flat = gym.utils.flatten_space(space)
    except ValueError:  # NumPy's, of a part that is an empty Dict or Tuple
        raise InvalidInput(
            f"observations of {describe(from_gymnasium(space))} cannot be flattened: leave out "
            "parts that are empty"
        ) from None
    if isinstance(flat, gym.Box) and flat.shape == (size,):
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        if isinstance(space, gym.Dict) and tuple(space.spaces) == ASYMMETRIC:
            return AsymmetricBox(low, high, gym.utils.flatdim(space["actor"]))
        return gym.Box(low, high, (size,), np.float32)
    raise InvalidInput(f"observations of {space} cannot be flattened", space=space)


def action_array_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """`space` itself if a batch can act in it: Box, Discrete, and vectors of MultiDiscrete or
    MultiBinary."""
    if isinstance(space, gym.Box | gym.Discrete):
        return space
    if isinstance(space, gym.MultiDiscrete | gym.MultiBinary) and len(space.shape) == 1:
        return space
    try:
        text = describe(from_gymnasium(space))
    except InvalidInput:
        text = str(space)
    right = "Box, Discrete, or a vector of MultiDiscrete or MultiBinary, one for all parts"
    message = f"actions in {text} are not supported; use {right}"
    raise InvalidInput(message, reason="ACTION_SPACE_UNSUPPORTED", space=space)


def without_texts(space: gymnasium.Space[Any]) -> tuple[gymnasium.Space[Any], list[str]]:
    """A Dict without its parts of text, and their names. Raises InvalidInput if nothing remains."""
    if not isinstance(space, gym.Dict):
        return space, []
    texts = [
        name for name, part in space.items() if part.dtype is not None and part.dtype.kind == "U"
    ]
    if texts and len(texts) == len(space.spaces):
        raise InvalidInput(
            f"the observation has nothing but text, in {texts}: add numbers", space=space
        )
    kept = [(name, part) for name, part in space.items() if name not in texts]
    return (gym.Dict(kept) if texts else space), [str(name) for name in texts]


def _bound(values: np.ndarray[Any, np.dtype[Any]]) -> Bound:
    flat = values.ravel()
    if flat.size and bool((flat == flat[0]).all()):
        return float(flat[0])
    return tuple(float(number) for number in flat)


def _limits(bound: Bound, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    numbers: Any = bound if isinstance(bound, tuple) else (bound,)
    if kind.kind in "iu":  # as floats, the bounds of int64 are a little outside of it
        edges = np.iinfo(kind)
        numbers = [int(min(max(number, edges.min), edges.max)) for number in numbers]
    return np.broadcast_to(
        np.asarray(numbers, kind).reshape(shape if isinstance(bound, tuple) else ()), shape
    )


def action_mask_size(space: gymnasium.Space[Any]) -> int:
    """Flags in a mask of `space`: n of Discrete, the sum of nvec of MultiDiscrete; 0 where masks
    are not supported."""
    return sum(action_mask_parts(space))


def mask_method(environment: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """The `action_masks` of the environment or a wrapper; None if there is none, or masks are not
    supported."""
    if not action_mask_size(environment.action_space) or not environment.has_wrapper_attr(
        "action_masks"
    ):
        return None
    method = environment.get_wrapper_attr("action_masks")
    return method if callable(method) else None


def info_mask(info: Any) -> Any:
    """The mask in `info`, unchecked; None if there is none."""
    return info.get("action_mask") if isinstance(info, dict) else None


def check_mask(space: gymnasium.Space[Any], mask: Any, what: str) -> NDArray[np.bool_]:
    """`mask` as bool [n]; InvalidInput unless it fits `space` and allows something in each of its
    parts."""
    size = action_mask_size(space)
    if mask is None:
        raise InvalidInput(
            f"{what} is missing; an environment with masks gives one with every reset and step"
        )
    if isinstance(mask, tuple | list) and mask:
        array = np.concatenate([np.ravel(part) for part in mask])
    else:
        array = np.asarray(mask)
    if array.shape != (size,):
        raise InvalidInput(
            f"{what} has the shape {list(array.shape)}; a mask of {space} has [{size}]"
        )
    if array.dtype.kind not in "biuf" or (array != array.astype(np.bool_)).any():
        raise InvalidInput(
            f"{what} is {mask!r}; a mask holds 1 (or True) where an action is allowed, else 0"
        )
    flags = array.astype(np.bool_)
    starts = np.cumsum([0, *action_mask_parts(space)[:-1]])
    allowed = np.logical_or.reduceat(flags, starts)
    if not allowed.all():
        part = f" in part {int(allowed.argmin())}" if len(starts) > 1 else ""
        raise InvalidInput(
            f"{what} allows no action{part}; until the episode ends at least one must be allowed"
        )
    return flags


def sample_allowed(space: gymnasium.Space[Any], mask: NDArray[np.bool_] | None) -> Any:
    """A random action; with a `mask`, one that it allows."""
    if isinstance(space, gymnasium.spaces.Box):
        action = space.sample()
        return np.where(np.abs(action) < NO_BOUND, action, np.sign(action)).astype(space.dtype)
    if mask is None:
        return space.sample()
    parts = np.split(mask.astype(np.int8), np.cumsum(action_mask_parts(space))[:-1])
    return space.sample(
        mask=parts[0] if isinstance(space, gymnasium.spaces.Discrete) else tuple(parts)
    )


def action_mask_parts(space: gymnasium.Space[Any]) -> list[int]:
    """Flags for each part of an action; empty where masks are not supported."""
    match space:
        case gymnasium.spaces.Discrete():
            return [int(space.n)]
        case gymnasium.spaces.MultiDiscrete():
            return [int(size) for size in space.nvec.ravel()]
        case _:
            return []
