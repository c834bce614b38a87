"""Settings of the services of a pod: where the files that jobs bring along are kept."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from podracer_core.attachments.cache import FileCache
from podracer_core.config import ByteSize
from podracer_core.process import ServiceSettings

__all__ = ["PodSettings"]


@dataclass(frozen=True)
class PodSettings(ServiceSettings):
    """
    cache_dir   folder of its own for users' code and data sets, made where it is missing; several processes may share
                it. Unset: one of this user's in the folder for temporary files
    cache_size  what it may hold; a data set alone may take 1 GiB
    """

    cache_dir: Path | None = None
    cache_size: ByteSize = 4 << 30

    def file_cache(self) -> FileCache:
        """The cache; nothing is made before it is used."""
        folder = self.cache_dir or Path(tempfile.gettempdir(), f"podracer_cache-{os.geteuid()}")
        return FileCache(folder, self.cache_size)
