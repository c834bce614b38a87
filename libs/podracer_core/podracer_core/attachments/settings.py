"""Settings of the services of a pod: where the files that jobs bring along are kept, and where tensors cross."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from podracer_core.attachments.cache import FileCache
from podracer_core.carriers.shared_folder import SharedFolder
from podracer_core.config import ByteSize
from podracer_core.service.process import ServiceSettings


@dataclass(frozen=True)
class PodSettings(ServiceSettings):
    """
    cache_dir   folder of its own for users' code and data sets, made where it is missing; several processes may share
                it. Unset: one of this user's in the folder for temporary files
    cache_size  what it may hold; a data set alone may take 1 GiB
    shm_dir     folder in memory through which services of one machine hand tensors to each other, the same for all of
                them. Unset: /dev/shm where there is one. Without it tensors travel inside the messages
    """

    cache_dir: Path | None = None
    cache_size: ByteSize = 4 << 30
    shm_dir: Path | None = None

    def file_cache(self) -> FileCache:
        """The cache; nothing is made before it is used."""
        folder = self.cache_dir or Path(tempfile.gettempdir(), f"podracer_cache-{os.geteuid()}")
        return FileCache(folder, self.cache_size)

    def shared_folder(self) -> SharedFolder:
        """The folder for tensors, without what processes that have ended left there."""
        folder = SharedFolder(self.shm_dir)
        folder.sweep()
        return folder
