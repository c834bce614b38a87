"""A code folder as an archive: the same content gives the same bytes, and so the same hash."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path
from typing import IO

from podracer_core.attachments.code_folder import CodeFile, code_files, refuse_code, size_problem
from podracer_core.attachments.limits import CHUNK_BYTES, MAX_PACKED_BYTES

__all__ = ["pack_code"]

_NO_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3


def pack_code(folder: Path, entry_point: str) -> bytes:
    """A zip of a code folder, in order of path, without times and owners. Raises InvalidInput as `code_files` does,
    where the archive becomes too large, and where a file becomes shorter meanwhile."""
    files = code_files(folder, entry_point)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.path, _NO_TIME)
            entry.create_system = _UNIX
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if file.executable else 0o644)) << 16
            try:
                with archive.open(entry, "w") as target:
                    _copy(file, target)
            except OSError as error:
                raise refuse_code(f"cannot read {file.source}: {error.strerror}") from error
            if (size_bytes := packed.tell()) > MAX_PACKED_BYTES:
                what = f"{folder} packs to more than"
                raise refuse_code(size_problem(what, size_bytes, MAX_PACKED_BYTES, files))
    return packed.getvalue()


def _copy(file: CodeFile, target: IO[bytes]) -> None:
    """As much as it had when it was looked at: a log may be growing there."""
    left = file.size_bytes
    with file.source.open("rb") as source:
        while left:
            data = source.read(min(left, CHUNK_BYTES))
            if not data:
                raise refuse_code(f"{file.source} was changed while it was packed: try again")
            target.write(data)
            left -= len(data)
