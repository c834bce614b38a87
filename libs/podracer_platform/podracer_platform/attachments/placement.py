"""The place of the files of jobs on a pod, and environments that use files from there."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.config import ByteSize
from podracer_core.errors import PreconditionFailed
from podracer_platform.attachments.cache import FileCache, Held
from podracer_platform.service import ServiceSettings
from podracer_platform.shared_folder import SharedFolder

FILES_MISSING = "FILES_MISSING"
"""Reason of the error that asks the caller to send the environment's files (PutFile) and to repeat
the call."""


@dataclass(frozen=True)
class PodSettings(ServiceSettings):
    """
    cache_dir   folder for users' code and data sets, created if it is missing; several processes
                may share it. Unset: one of this user's in the folder for temporary files
    cache_size  the most it may hold; a single data set may take 1 GiB
    shm_dir     folder in memory through which services of one machine hand tensors to each other,
                the same for all of them. Unset: /dev/shm where there is one. Without it tensors
                travel inside the messages
    advertise   address at which learners call this one. Unset: where it listens. A learner's
                wildcard address (0.0.0.0) becomes its host's name; a worker or an evaluator that
                listens there may be called by any address of its machine
    """

    cache_dir: Path | None = None
    cache_size: ByteSize = 4 << 30
    shm_dir: Path | None = None
    advertise: str = ""

    def file_cache(self) -> FileCache:
        """The cache; its folder is created at first use."""
        folder = self.cache_dir or Path(tempfile.gettempdir(), f"podracer_cache-{os.geteuid()}")
        return FileCache(folder, self.cache_size)

    def shared_folder(self) -> SharedFolder:
        """The folder for tensors, without the files of processes that have ended."""
        folder = SharedFolder(self.shm_dir)
        folder.sweep()
        return folder


class PlacedEnvironment:
    """An environment with local paths only. The files are kept until `close`; closing twice is
    harmless."""

    def __init__(self, spec: EnvironmentSpec, holds: ExitStack) -> None:
        self.spec = spec
        self._holds = holds

    def close(self) -> None:
        """Release its files: every process that was started from them must have ended."""
        self._holds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def place_environment(spec: EnvironmentSpec, cache: FileCache) -> PlacedEnvironment:
    """`spec` with the folder of its code and the paths of its data sets.

    Raises PreconditionFailed (FILES_MISSING) if one is not in the cache, InvalidInput
    (INVALID_CODE_ARCHIVE) for an invalid code archive, and the cache's errors."""
    with ExitStack() as holds:
        code_path = spec.code_path
        if spec.code is not None:
            code_path = _path_of(cache.hold_unpacked(spec.code), spec.code, holds)
        data = {
            name: _path_of(cache.hold(file), file, holds) if isinstance(file, StoredFile) else file
            for name, file in spec.data.items()
        }
        placed = replace(spec, code=None, code_path=code_path, data=data)
        return PlacedEnvironment(placed, holds.pop_all())


def _path_of(held: Held | None, file: StoredFile, holds: ExitStack) -> str:
    if held is None:
        raise PreconditionFailed(
            f"the file {file.sha256} has not been brought here", reason=FILES_MISSING
        )
    return str(holds.enter_context(held).path)
