"""Converts between the values of one Gymnasium environment and its row in the arrays of a batch.

The conversion for a space is chosen once, so that each step is fast. Neither torch nor user code is
imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from podracer_core.catalogue import origin_array
from podracer_core.errors import InvalidInput

Array = NDArray[Any]
ObservationWriter = Callable[[Array, int, Any], None]


def observation_writer(
    space: gymnasium.Space[Any],
    array_space: gym.Box,
    source: Callable[[], str],
    origin: Sequence[float] = (),
) -> ObservationWriter:
    """A function that writes an observation from `space` into a row of an array: `write(array, row,
    observation)`.

    `array_space` is `observation_array_space(space)`. The function raises InvalidInput for a value
    that does not fit, with the name of its `source`; NaN and values outside the bounds of a Box are
    accepted. `origin` is subtracted."""
    if any(origin):
        write_exact = observation_writer(space, array_space, source)
        zero = origin_array(origin, array_space.shape)
        exact = np.zeros((1, *array_space.shape))

        def write_from_origin(array: Array, row: int, observation: Any) -> None:
            write_exact(exact, 0, observation)
            np.subtract(exact[0], zero, out=array[row], casting="same_kind")

        return write_from_origin
    if not isinstance(space, gym.Box) or space.shape != array_space.shape:
        return _flattening_writer(space, array_space.shape, source)
    shape, dtype = array_space.shape, array_space.dtype
    # Into bytes NumPy would cut off the fractions of floats without a word, into floats all numbers
    # may go.
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
    """A function that makes actions for N environments from the array of a batch: copies, which
    user code may keep."""
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
    if not gymnasium.spaces.utils.flatdim(space):
        return _write_zero

    def write(array: Array, row: int, observation: Any) -> None:
        try:
            flat = flatten(space, observation)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            check_in_space(space, observation, f"the observation of {source()}")
            raise
        array[row] = _as_array(flat, shape, array.dtype, source)

    return write


def _write_zero(array: Array, row: int, observation: Any) -> None:
    """Of an observation without numbers."""
    array[row] = 0


def as_numpy(value: Any) -> Array:
    """`value` as an array, also a tensor that has a gradient or is on another device."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def numbers_of(space: gymnasium.Space[Any], observation: Any) -> Array:
    """The numbers of an observation from `space`, as a vector."""
    if isinstance(space, gym.Dict | gym.Tuple) and not space.spaces:
        return np.zeros(0)
    whole: Any = (
        as_numpy(observation) if isinstance(space, gym.Box) else gym.flatten(space, observation)
    )
    return np.ravel(whole)


def _as_array(
    value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], source: Callable[[], str]
) -> Array:
    """`value` as an array of `shape` that NumPy can write into one of `dtype`; InvalidInput if it
    is none."""
    if value is None:
        raise InvalidInput(f"{source()} returned None in place of an observation")
    try:
        array = as_numpy(value)
    except ValueError as error:  # a ragged list
        raise InvalidInput(
            f"{source()} returned an observation that is no array: {error}"
        ) from None
    if array.shape != shape:
        found, right = list(array.shape), list(shape)
        raise InvalidInput(
            f"{source()} returned an observation of shape {found}; its space has {right}"
        )
    kinds = "biu" if dtype == np.uint8 else "biuf"
    if array.dtype.kind not in kinds:
        raise InvalidInput(
            f"{source()} returned an observation of type {array.dtype}; its space needs {dtype}"
        )
    if dtype == np.uint8 and ((array < 0) | (array > 255)).any():  # NumPy would wrap them around
        raise InvalidInput(
            f"{source()} returned an observation with numbers outside the bounds of {dtype}"
        )
    return array


_LARGEST = float(np.finfo(np.float32).max)
_TOLERANCE = 1e-5  # relative, for bounds: float32 of a float64 bound may lie just outside
_LITTLE = 0.1  # of the range, by which a number outside its bounds is only told

Warn = Callable[[str, str], None]
"""Takes the kind of a warning, of which only the first is told, and its text."""


class NotFinite(InvalidInput):
    """A number that is NaN, infinite or None: a world that breaks now and then gives some."""


def _ignore(_kind: str, _text: str) -> None:
    pass


def check_in_space(
    space: gymnasium.Space[Any], value: Any, what: str, warn: Warn = _ignore
) -> None:
    """InvalidInput unless `value` lies in `space`. A Box may be given in another numeric type;
    `warn` is told of numbers a little outside its bounds."""
    match space:
        case gymnasium.spaces.Box():
            _check_box(space, value, what, warn)
        case gymnasium.spaces.Dict() if isinstance(value, dict):
            # the rows leave out what the space does not name
            if not set(space.spaces) <= set(value):
                raise InvalidInput(
                    f"{what} has the keys {sorted(value)}; its space has {sorted(space.spaces)}"
                )
            for name, inner in space.spaces.items():
                check_in_space(inner, value[name], f"{what}[{name!r}]", warn)
        case gymnasium.spaces.Tuple() if isinstance(value, tuple | list) and len(value) == len(
            space.spaces
        ):
            for index, (inner, part) in enumerate(zip(space.spaces, value, strict=True)):
                check_in_space(inner, part, f"{what}[{index}]", warn)
        case _ if not space.contains(value):
            raise InvalidInput(f"{what} is {_short(value)}, which is not in {space}")


def check_reset(space: gymnasium.Space[Any], result: Any, warn: Warn = _ignore) -> None:
    """Raises InvalidInput unless `result` has the form of the result of a Gymnasium reset."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise InvalidInput(f"reset must return (observation, info), not {_form(result)}")
    check_in_space(space, result[0], "the observation of reset", warn)


def check_step(space: gymnasium.Space[Any], result: Any, warn: Warn = _ignore) -> bool:
    """Whether the episode has ended. Raises InvalidInput unless `result` has the form of the result
    of a Gymnasium step; `warn` is told of what is plain in another form, such as a reward in an
    array of size 1."""
    if not (isinstance(result, tuple) and len(result) == 5):
        right = "(observation, reward, terminated, truncated, info)"
        former = (
            "; the former gym returned four"
            if isinstance(result, tuple) and len(result) == 4
            else ""
        )
        raise InvalidInput(f"step must return {right}, not {_form(result)}{former}")
    observation, reward, terminated, truncated, _ = result
    check_in_space(space, observation, "the observation of step", warn)
    if reward is None or not abs(number_of(reward)) <= _LARGEST:
        raise NotFinite(f"the reward of step must be a finite number, not {_short(reward)}")
    if not isinstance(reward, Real):
        warn("reward", f"the reward of step is {_short(reward)}; a float is right")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        flag_of(name, flag)
        if not isinstance(flag, bool | np.bool_):
            warn("flag", f"{name} is {_short(flag)}; a bool is right")
    return flag_of("terminated", terminated) or flag_of("truncated", truncated)


def number_of(reward: Any) -> float:
    """A reward that is no Python number, such as an array of one number. Raises InvalidInput if it
    is no number."""
    array = as_numpy(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise InvalidInput(f"the reward of step must be a finite number, not {_short(reward)}")
    return float(array.reshape(-1)[0])


def flag_of(name: str, flag: Any) -> bool:
    """`terminated` or `truncated` as a bool; 0 and 1 are taken, too. Raises InvalidInput for
    anything else."""
    if isinstance(flag, bool | np.bool_):
        return bool(flag)
    array = as_numpy(flag)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.reshape(-1)[0] not in (0, 1):
        raise InvalidInput(f"{name} must be a bool, not {_short(flag)}")
    return bool(array.reshape(-1)[0])


def check_frame(frame: Any) -> NDArray[np.uint8]:
    """`frame` itself; InvalidInput unless it is a picture, uint8 [height, width, 3]."""
    if not (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
    ):
        found = (
            f"{frame.dtype} {list(frame.shape)}"
            if isinstance(frame, np.ndarray)
            else type(frame).__name__
        )
        raise InvalidInput(f"render must return an array uint8 [height, width, 3], not {found}")
    return frame


def _form(result: Any) -> str:
    return f"a {type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}"


def _check_box(space: gymnasium.spaces.Box, value: Any, what: str, warn: Warn) -> None:
    array = as_numpy(value)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{what} must be an array of numbers, not {_short(value)}")
    if array.shape != space.shape:
        raise InvalidInput(
            f"{what} has the shape {list(array.shape)}; its space has {list(space.shape)}"
        )
    if space.dtype.kind in "iu" and array.dtype.kind == "f":
        raise InvalidInput(
            f"{what} has the type {array.dtype}; its space has {space.dtype}, without fractions"
        )
    if not np.isfinite(array).all():
        raise NotFinite(f"{what} has NaN or infinity in it: {_short(value)}")
    if bool((array >= space.low).all() and (array <= space.high).all()):  # quick, for many numbers
        return
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    outside = np.maximum(low - array, array - high)
    if (outside > _TOLERANCE * (1 + np.minimum(np.abs(low), np.abs(high)))).any():
        where = tuple(int(axis) for axis in np.unravel_index(np.argmax(outside), outside.shape))
        width = high[where] - low[where]
        bounds = f"[{space.low[where]:g}, {space.high[where]:g}]"
        text = (
            f"{what} is {array[where]:g} at {list(where)}, outside the bounds {bounds} of its space"
        )
        little = _LITTLE * (
            width if math.isfinite(width) else 1 + min(abs(low[where]), abs(high[where]))
        )
        if outside[where] > little * (1 + _TOLERANCE):
            raise InvalidInput(text)
        warn("bounds of observations", f"{text}; it is used as it is")


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 200 else text[:200] + '…'}"
