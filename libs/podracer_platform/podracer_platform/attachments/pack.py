"""A code folder as an archive: the same content gives the same bytes, and so the same hash."""

from __future__ import annotations

import io
import itertools
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from podracer_core.errors import InvalidInput
from podracer_platform.attachments.limits import (
    CHUNK_BYTES,
    MAX_FILES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    is_plain_path,
    mebibytes,
)

_SHOWN = 5
# what marks one of Podracer's, such as runs/
_STATE_FOLDER = ("lock", "tokens", "orchestrator.sqlite")


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file: its path in the archive, and its path on disk."""

    path: str
    source: Path
    size_bytes: int
    executable: bool


def code_files(folder: Path, entry_point: str) -> list[CodeFile]:
    """The files of a code folder, or the one file of a module, by their path in the archive, in
    order.

    A folder with an `__init__.py` is a package itself, and stands in the archive by its name; any
    other holds packages. Hidden files, `__pycache__`, compiled Python and a state folder of
    Podracer are left out. Raises InvalidInput (`environment.code`) if the folder is too large,
    cannot be read, has a link to the outside, or does not hold the module of `entry_point`."""
    try:
        root = folder.resolve(strict=True)
        prefix = f"{root.name}/" if (root / "__init__.py").is_file() else ""
        found: list[CodeFile] = []
        for file in (
            [_file(root.name, root, root, root.stat())] if root.is_file() else _walk(root, prefix)
        ):
            found.append(file)
            if len(found) > MAX_FILES:
                raise refuse_code(
                    f"{folder} has more than {MAX_FILES:_} files, which is the limit; "
                    f"{_largest(found)}"
                )
    except OSError as error:
        raise refuse_code(f"cannot read {error.filename or folder}: {error.strerror}") from error
    size_bytes = sum(file.size_bytes for file in found)
    if size_bytes > MAX_UNPACKED_BYTES:
        raise refuse_code(size_problem(f"{folder} has", size_bytes, MAX_UNPACKED_BYTES, found))
    _require_module(folder, entry_point, found)
    return sorted(found, key=lambda file: file.path)


def refuse_code(problem: str) -> InvalidInput:
    """The error for a code folder that cannot be sent."""
    return InvalidInput(problem, field="environment.code", reason="INVALID_CODE")


def size_problem(what: str, size_bytes: int, limit_bytes: int, files: Sequence[CodeFile]) -> str:
    """The error for a folder that is too large."""
    return (
        f"{what} {mebibytes(size_bytes)}, the limit is {mebibytes(limit_bytes)}; {_largest(files)}"
    )


def _largest(files: Sequence[CodeFile]) -> str:
    largest = sorted(files, key=lambda file: file.size_bytes, reverse=True)[:_SHOWN]
    return "its largest files: " + ", ".join(
        f"{file.path} ({mebibytes(file.size_bytes)})" for file in largest
    )


def _walk(root: Path, prefix: str) -> Iterator[CodeFile]:
    waiting: list[tuple[Path, str, tuple[Path, ...]]] = [
        (root, prefix, (root,))
    ]  # the last: the folders that lead there, to find links in circles
    for count in itertools.count(1):
        if not waiting:
            return
        if count > MAX_FILES:
            raise refuse_code(f"{root} has more than {MAX_FILES:_} folders, which is the limit")
        folder, prefix, above = waiting.pop()
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        if set(names).issuperset(_STATE_FOLDER):
            continue
        for name in names:
            if name.startswith(".") or name == "__pycache__" or name.endswith((".pyc", ".pyo")):
                continue
            path = folder / name
            if not is_plain_path(prefix + name):
                raise refuse_code(
                    f"{folder}: the name {name!r} cannot stand in an archive, or is too deep or "
                    "too long"
                )
            real = _inside(path, root) if path.is_symlink() else path
            status = real.stat()
            if not stat.S_ISDIR(status.st_mode):
                yield _file(prefix + name, path, real, status)
            elif real in above:
                raise refuse_code(f"{path} is a link to a folder that it lies in")
            else:
                waiting.append((real, f"{prefix}{name}/", (*above, real)))


def _file(name: str, path: Path, real: Path, status: os.stat_result) -> CodeFile:
    if not stat.S_ISREG(status.st_mode):
        raise refuse_code(f"{path} is neither a file nor a folder")
    if not os.access(real, os.R_OK):
        raise refuse_code(f"{path} cannot be read: permission denied")
    return CodeFile(name, real, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _inside(link: Path, root: Path) -> Path:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
        raise refuse_code(f"{link} is a link to nothing") from error
    if not real.is_relative_to(root):
        raise refuse_code(
            f"{link} is a link to {real}, outside of {root}: copy what it points to into the folder"
        )
    return real


def _require_module(folder: Path, entry_point: str, files: Sequence[CodeFile]) -> None:
    module = re.split(r"[.:]", entry_point, maxsplit=1)[0]
    if not any(re.split(r"[./]", file.path, maxsplit=1)[0] == module for file in files):
        raise refuse_code(
            f"{folder} does not hold the module {module} of {entry_point}: expected {module}/ or "
            f"{module}.py in it, or the package folder {module} itself, with an __init__.py"
        )


_NO_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3


def pack_code(folder: Path, entry_point: str) -> bytes:
    """A zip of a code folder, in order of path, without times and owners. Raises InvalidInput as
    `code_files` does, if the archive becomes too large, and if a file becomes shorter during the
    call."""
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
    """Copy as many bytes as the file had at first: it may be a growing log."""
    left = file.size_bytes
    with file.source.open("rb") as source:
        while left:
            data = source.read(min(left, CHUNK_BYTES))
            if not data:
                raise refuse_code(f"{file.source} was changed while it was packed: try again")
            target.write(data)
            left -= len(data)
