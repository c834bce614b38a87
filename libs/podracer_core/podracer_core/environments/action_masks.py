"""Which actions a user's environment allows at present, in two conventions; neither torch nor user code is imported.

`info["action_mask"]` of reset and step, as in Gymnasium's own Taxi; or a method `action_masks()` of the environment or
of a wrapper around it, as sb3-contrib has it, which then counts alone. A mask is one row of flags, 1 where an action is
allowed: n of them in Discrete(n); in MultiDiscrete one part after the other, or a sequence of one row a part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import InvalidInput


def action_mask_size(space: gymnasium.Space[Any]) -> int:
    """Flags in a mask of `space`: n of Discrete, the sum of nvec of MultiDiscrete; 0 where masks are not supported."""
    return sum(action_mask_parts(space))


def mask_method(environment: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """The environment's or a wrapper's `action_masks`; None where there is none, or masks are not supported."""
    if not action_mask_size(environment.action_space) or not environment.has_wrapper_attr("action_masks"):
        return None
    method = environment.get_wrapper_attr("action_masks")
    return method if callable(method) else None


def info_mask(info: Any) -> Any:
    """What `info` says about actions, unchecked; None where it says nothing."""
    return info.get("action_mask") if isinstance(info, dict) else None


def check_mask(space: gymnasium.Space[Any], mask: Any, what: str) -> NDArray[np.bool_]:
    """`mask` as bool [n]; InvalidInput unless it fits `space` and allows something in each of its parts."""
    size = action_mask_size(space)
    if mask is None:
        raise InvalidInput(f"{what} is missing; an environment with masks gives one with every reset and step")
    if isinstance(mask, tuple | list) and mask:
        array = np.concatenate([np.ravel(part) for part in mask])
    else:
        array = np.asarray(mask)
    if array.shape != (size,):
        raise InvalidInput(f"{what} has the shape {list(array.shape)}; a mask of {space} has [{size}]")
    if array.dtype.kind not in "biuf" or (array != array.astype(np.bool_)).any():
        raise InvalidInput(f"{what} is {mask!r}; a mask holds 1 (or True) where an action is allowed, else 0")
    flags = array.astype(np.bool_)
    starts = np.cumsum([0, *action_mask_parts(space)[:-1]])
    allowed = np.logical_or.reduceat(flags, starts)
    if not allowed.all():
        part = f" in part {int(allowed.argmin())}" if len(starts) > 1 else ""
        raise InvalidInput(f"{what} allows no action{part}; until the episode ends at least one must be allowed")
    return flags


def sample_allowed(space: gymnasium.Space[Any], mask: NDArray[np.bool_] | None) -> Any:
    """A random action, one that `mask` allows if there is one."""
    if mask is None:
        return space.sample()
    parts = np.split(mask.astype(np.int8), np.cumsum(action_mask_parts(space))[:-1])
    return space.sample(mask=parts[0] if isinstance(space, gymnasium.spaces.Discrete) else tuple(parts))


def action_mask_parts(space: gymnasium.Space[Any]) -> list[int]:
    """Flags for each part of an action; empty where masks are not supported."""
    match space:
        case gymnasium.spaces.Discrete():
            return [int(space.n)]
        case gymnasium.spaces.MultiDiscrete():
            return [int(size) for size in space.nvec.ravel()]
        case _:
            return []
