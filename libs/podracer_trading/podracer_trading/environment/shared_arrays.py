"""The arrays of a large market in files of the pods' cache, so that the processes of a machine that
share the cache have one copy in memory, and one of them prepares it.

They lie beside the table's copy in the cache, in a folder named by the table and by all options
that change them. Each process maps them; the kernel keeps a page once for all. The cache removes
the folder when it needs room; the mappings of running processes outlive that."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podracer_core.errors import Exhausted

logger = logging.getLogger(__name__)

_LARGE_BYTES = 64 << 20  # of a table; a smaller one is prepared in a moment by each process
_VALUES = "values.json"

Arrays = dict[str, NDArray[Any]]

Room = Callable[[Mapping[str, tuple[tuple[int, ...], Any]]], Arrays]
"""Gives zeroed arrays of these shapes and types, by name."""

Make = Callable[[Room], dict[str, Any]]
"""Fills the arrays that it asks for once, and returns JSON values."""


def shared_arrays(table: str, options: Mapping[str, Any], make: Make) -> tuple[Arrays, Any]:
    """The arrays and values of `make`, which depend on the table and the `options` alone. They are
    shared if the table is large and lies in a cache of pods, else private."""
    from podracer_core.config import parse_bytes
    from podracer_platform.attachments import FileCache
    from podracer_platform.service import PodSettings

    path = Path(table)
    limit = os.environ.get("PODRACER_CACHE_SIZE", "")
    cache = FileCache.holding(path, parse_bytes(limit) if limit else PodSettings.cache_size)
    if cache is None or path.stat().st_size < _LARGE_BYTES:
        return _private(make)
    digest = hashlib.sha256(json.dumps([path.name, options], sort_keys=True).encode()).hexdigest()
    try:
        with cache.hold_made(f"{digest}-market", lambda folder: _write(make, folder)) as held:
            values = json.loads((held.path / _VALUES).read_text())
            # copy on write: torch has no read-only tensors, and no process writes
            files = held.path.glob("*.npy")
            return {file.stem: np.load(file, mmap_mode="c") for file in files}, values
    except Exhausted as error:
        logger.warning("the market is prepared for this process alone: %s", error.message)
        return _private(make)


def _private(make: Make) -> tuple[Arrays, Any]:
    arrays: Arrays = {}

    def room(wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> Arrays:
        arrays.update({name: np.zeros(*each) for name, each in wanted.items()})
        return arrays

    return arrays, make(room)


def _write(make: Make, folder: Callable[[int], Path]) -> None:
    """Make the arrays as files in a folder with room for them."""
    places: list[Path] = []

    def room(wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> Arrays:
        sizes = [np.dtype(kind).itemsize * int(np.prod(shape)) for shape, kind in wanted.values()]
        places.append(folder(sum(sizes)))
        return {name: _mapped(places[0] / f"{name}.npy", *each) for name, each in wanted.items()}

    values = make(room)
    (places[0] / _VALUES).write_text(json.dumps(values))


def _mapped(path: Path, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """A new file; its space is reserved, as a full disk would otherwise end the process."""
    if 0 in shape:
        np.save(path, empty := np.zeros(shape, kind))
        return empty
    mapped: NDArray[Any] = np.lib.format.open_memmap(path, "w+", kind, shape)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, path.stat().st_size)
    finally:
        os.close(descriptor)
    return mapped
