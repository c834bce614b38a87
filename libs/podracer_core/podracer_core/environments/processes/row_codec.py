"""Between what one Gymnasium environment gives and takes, and its row in the arrays of a batch.

What to do for a space is decided once; what is left for every step is short. Neither torch nor user code is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from podracer_core.environments.space_check import check_in_space
from podracer_core.errors import InvalidInput

__all__ = ["ObservationWriter", "action_reader", "observation_writer"]

Array = NDArray[Any]
ObservationWriter = Callable[[Array, int, Any], None]


def observation_writer(
    space: gymnasium.Space[Any], array_space: gym.Box, source: Callable[[], str]
) -> ObservationWriter:
    """A function that writes an observation from `space` into a row of an array: `write(array, row, observation)`.

    `array_space` is `observation_array_space(space)`. The function raises InvalidInput for what does not fit, with the
    name of its `source`; NaN and what lies outside the bounds of a Box pass.
    """
    if not isinstance(space, gym.Box):
        return _flattening_writer(space, array_space.shape, source)
    shape, dtype = array_space.shape, array_space.dtype
    # Into bytes NumPy would cut off the fractions of floats without a word, into floats all numbers may go.
    only_bytes = dtype == np.uint8

    def write(array: Array, row: int, observation: Any) -> None:
        # A wrong shape must not get through: NumPy would broadcast it.
        if (
            type(observation) is not np.ndarray
            or observation.shape != shape
            or (only_bytes and observation.dtype != np.uint8)
        ):
            observation = _as_array(observation, shape, array.dtype, source)
        try:
            array[row] = observation
        except (TypeError, ValueError):
            _as_array(observation, shape, array.dtype, source)
            raise

    return write


def action_reader(space: gymnasium.Space[Any]) -> Callable[[Array], Iterable[Any]]:
    """A function that makes actions for N environments from the array of a batch: copies, which user code may keep."""
    if isinstance(space, gym.Discrete | gym.MultiDiscrete):
        start, dtype = space.start, space.dtype
        return lambda actions: (actions + start).astype(dtype, copy=False)
    if isinstance(space, gym.Box) and space.dtype == np.float64:
        low, high = space.low, space.high
        # A float64 bound may lie inside its own float32, to which the batch has clipped.
        return lambda actions: np.clip(actions, low, high, dtype=np.float64)
    kind = space.dtype
    return lambda actions: actions.astype(kind)


def _flattening_writer(
    space: gymnasium.Space[Any], shape: tuple[int, ...], source: Callable[[], str]
) -> ObservationWriter:
    flatten = gymnasium.spaces.utils.flatten

    def write(array: Array, row: int, observation: Any) -> None:
        try:
            flat = flatten(space, observation)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            check_in_space(space, observation, f"the observation of {source()}")
            raise
        array[row] = _as_array(flat, shape, array.dtype, source)

    return write


def _as_array(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], source: Callable[[], str]) -> Array:
    """`value` as an array of `shape` that NumPy can write into one of `dtype`; InvalidInput if it is none."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # a ragged list
        raise InvalidInput(f"{source()} returned an observation that is no array: {error}") from None
    if array.shape != shape:
        found, right = list(array.shape), list(shape)
        raise InvalidInput(f"{source()} returned an observation of shape {found}; its space has {right}")
    kinds = "biu" if dtype == np.uint8 else "biuf"
    if array.dtype.kind not in kinds:
        raise InvalidInput(f"{source()} returned an observation of type {array.dtype}; its space needs {dtype}")
    if dtype == np.uint8 and ((array < 0) | (array > 255)).any():  # NumPy would wrap them around
        raise InvalidInput(f"{source()} returned an observation with numbers outside the bounds of {dtype}")
    return array
