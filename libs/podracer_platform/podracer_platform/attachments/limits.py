"""Limits for the files of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_PACKED_BYTES = 64 << 20
"""The maximum size of a code archive."""

MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 10_000
"""The maximum contents of an unpacked code archive; it may have as many folders as files."""

MAX_DATA_BYTES = 1 << 30
"""The maximum size of a data set, which is the limit of ArtifactService."""

CHUNK_BYTES = 1 << 20
"""The size of the pieces of a file in a stream."""


def mebibytes(size_bytes: int) -> str:
    """`12.3 MiB`, for messages."""
    return f"{size_bytes / 2**20:.1f} MiB"


_MAX_PATH_BYTES = 1024
_MAX_NAME_BYTES = 255  # what file systems take
_MAX_DEPTH = 32
_BAD_CHARACTER = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:")


def is_plain_path(path: str) -> bool:
    """Whether the path is relative, stays below its folder, and is valid on every file system."""
    if _BAD_CHARACTER.search(path) or _DRIVE.match(path):
        return False
    names = path.split("/")
    if (
        {"", ".", ".."} & set(names)
        or len(names) > _MAX_DEPTH
        or len(path.encode()) > _MAX_PATH_BYTES
    ):
        return False
    return max(len(name.encode()) for name in names) <= _MAX_NAME_BYTES


def count_folders(paths: Iterable[str]) -> int:
    """The number of folders that hold files with these paths."""
    folders: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return len(folders)
