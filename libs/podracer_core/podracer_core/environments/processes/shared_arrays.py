"""The memory that a `PreprocessVecEnv` and its processes share: one array a quantity, one row an environment.

The file behind it never has a name (or loses it at once), so that nothing is left over however its holders die; the
processes inherit its descriptor. Neither torch nor user code is imported here.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import Exhausted

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class SharedArrays:
    """Views of the shared memory, each with N rows; the meanings are those of `Step`.

    `action_mask` has no columns where the environment has no masks.
    """

    seed: NDArray[np.int64]
    episode: NDArray[np.int64]
    action: NDArray[Any]
    observation: NDArray[Any]
    final_observation: NDArray[Any]
    action_mask: NDArray[np.bool_]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]


def create_memory() -> int:
    """The descriptor of an empty file that no folder shows."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("podracer-environments")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def size_memory(
    descriptor: int, num_envs: int, observation: gymnasium.spaces.Box, action: gymnasium.Space[Any], mask_size: int
) -> None:
    """Give the file the size that `map_memory` needs; Exhausted if there is no memory for it."""
    _, size_bytes = _layout(num_envs, observation, action, mask_size)
    try:
        if hasattr(os, "posix_fallocate"):  # a full tmpfs is an error now instead of a SIGBUS later
            os.posix_fallocate(descriptor, 0, size_bytes)
        else:
            os.ftruncate(descriptor, size_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        raise Exhausted(f"no shared memory for {num_envs} environments ({size_bytes} bytes): {error}") from error


def map_memory(
    descriptor: int, num_envs: int, observation: gymnasium.spaces.Box, action: gymnasium.Space[Any], mask_size: int
) -> SharedArrays:
    """The arrays in the file; every process computes the same places. The mapping lives as long as the arrays."""
    places, size_bytes = _layout(num_envs, observation, action, mask_size)
    memory = mmap.mmap(descriptor, size_bytes)
    return SharedArrays(
        **{
            name: np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
            for name, (dtype, shape, offset) in places.items()
        }
    )


_Places = dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]


def _layout(
    num_envs: int, observation: gymnasium.spaces.Box, action: gymnasium.Space[Any], mask_size: int
) -> tuple[_Places, int]:
    """Name → (dtype, shape, offset in bytes), and the size of all."""
    action_dtype = np.float32 if isinstance(action, gymnasium.spaces.Box) else np.int64
    row_shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "seed": (np.int64, ()),
        "episode": (np.int64, ()),
        "action": (action_dtype, action.shape or ()),
        "observation": (observation.dtype, observation.shape),
        "final_observation": (observation.dtype, observation.shape),
        "action_mask": (np.bool_, (mask_size,)),
        "reward": (np.float32, ()),
        "terminated": (np.bool_, ()),
        "truncated": (np.bool_, ()),
        "valid": (np.bool_, ()),
    }
    places: _Places = {}
    offset = 0
    for field in fields(SharedArrays):
        kind, row = row_shapes[field.name]
        dtype, shape = np.dtype(kind), (num_envs, *row)
        places[field.name] = (dtype, shape, offset)
        size_bytes = math.prod(shape) * dtype.itemsize
        offset += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places, offset
