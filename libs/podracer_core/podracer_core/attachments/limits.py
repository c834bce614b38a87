"""How large the files of a job may be."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_PACKED_BYTES = 64 << 20
"""Of a code archive."""

MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 10_000
"""What a code archive may unpack to; it may have as many folders."""

MAX_DATA_BYTES = 1 << 30
"""Of a data set; what ArtifactService takes at most."""

CHUNK_BYTES = 1 << 20
"""Of a file on its way in a stream."""


def mebibytes(size_bytes: int) -> str:
    """`12.3 MiB`, for messages."""
    return f"{size_bytes / 2**20:.1f} MiB"


_MAX_PATH_BYTES = 1024
_MAX_NAME_BYTES = 255  # what file systems take
_MAX_DEPTH = 32
_BAD_CHARACTER = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:")


def is_plain_path(path: str) -> bool:
    """Whether it is relative, leads nowhere else, and can be written on every file system."""
    if _BAD_CHARACTER.search(path) or _DRIVE.match(path):
        return False
    names = path.split("/")
    if {"", ".", ".."} & set(names) or len(names) > _MAX_DEPTH or len(path.encode()) > _MAX_PATH_BYTES:
        return False
    return max(len(name.encode()) for name in names) <= _MAX_NAME_BYTES


def count_folders(paths: Iterable[str]) -> int:
    """How many folders files with these paths lie in."""
    folders: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return len(folders)
