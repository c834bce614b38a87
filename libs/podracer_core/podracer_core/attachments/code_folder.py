"""Which files of a folder are a user's code, and whether they can be sent."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from podracer_core.attachments.limits import MAX_FILES, MAX_UNPACKED_BYTES, mebibytes
from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["CodeFile", "code_files", "refuse_code", "size_problem"]

_SHOWN = 5
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file: its path in the archive, and where it lies."""

    path: str
    source: Path
    size_bytes: int
    executable: bool


def code_files(folder: Path, entry_point: str) -> list[CodeFile]:
    """The files of a code folder by their path in the archive, in order.

    A folder with an `__init__.py` is a package itself, and stands in the archive by its name; any other holds packages.
    Left out is what is hidden, `__pycache__` and compiled Python. Raises InvalidInput (`environment.code`) where it is
    too large, cannot be read, leads outside by a link, or does not hold the module of `entry_point`.
    """
    try:
        root = folder.resolve(strict=True)
        prefix = f"{root.name}/" if (root / "__init__.py").is_file() else ""
        found: list[CodeFile] = []
        for file in _walk(root, prefix, root, (root,)):
            found.append(file)
            if len(found) > MAX_FILES:
                raise refuse_code(f"{folder} has more than {MAX_FILES:_} files, which is the limit; {_largest(found)}")
    except OSError as error:
        raise refuse_code(f"cannot read {error.filename or folder}: {error.strerror}") from error
    size_bytes = sum(file.size_bytes for file in found)
    if size_bytes > MAX_UNPACKED_BYTES:
        raise refuse_code(size_problem(f"{folder} has", size_bytes, MAX_UNPACKED_BYTES, found))
    _require_module(folder, entry_point, found)
    return sorted(found, key=lambda file: file.path)


def refuse_code(problem: str) -> InvalidInput:
    """The error for a code folder that cannot be sent."""
    return InvalidInput(problem, violations=[FieldViolation("environment.code", problem)], reason="INVALID_CODE")


def size_problem(what: str, size_bytes: int, limit_bytes: int, files: Sequence[CodeFile]) -> str:
    """What to say of a folder that is too large."""
    return f"{what} {mebibytes(size_bytes)}, the limit is {mebibytes(limit_bytes)}; {_largest(files)}"


def _largest(files: Sequence[CodeFile]) -> str:
    largest = sorted(files, key=lambda file: file.size_bytes, reverse=True)[:_SHOWN]
    return "its largest files: " + ", ".join(f"{file.path} ({mebibytes(file.size_bytes)})" for file in largest)


def _walk(folder: Path, prefix: str, root: Path, open_folders: tuple[Path, ...]) -> Iterator[CodeFile]:
    """`open_folders` are those that are being walked through, to find links that lead in circles."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if name.startswith(".") or name == "__pycache__" or name.endswith((".pyc", ".pyo")):
            continue
        path = folder / name
        if _UNSENDABLE.search(name):
            raise refuse_code(f"{folder}: the name {name!r} cannot stand in an archive")
        real = _inside(path, root) if path.is_symlink() else path
        status = real.stat()
        if stat.S_ISDIR(status.st_mode):
            if real in open_folders:
                raise refuse_code(f"{path} is a link to a folder that it lies in")
            yield from _walk(real, f"{prefix}{name}/", root, (*open_folders, real))
        elif not stat.S_ISREG(status.st_mode):
            raise refuse_code(f"{path} is neither a file nor a folder")
        elif not os.access(real, os.R_OK):
            raise refuse_code(f"{path} cannot be read: permission denied")
        else:
            yield CodeFile(prefix + name, real, status.st_size, bool(status.st_mode & stat.S_IXUSR))


def _inside(link: Path, root: Path) -> Path:
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links, before Python 3.13
        raise refuse_code(f"{link} is a link to nothing") from error
    if not real.is_relative_to(root):
        raise refuse_code(f"{link} is a link to {real}, outside of {root}: copy what it points to into the folder")
    return real


def _require_module(folder: Path, entry_point: str, files: Sequence[CodeFile]) -> None:
    module = re.split(r"[.:]", entry_point, maxsplit=1)[0]
    if not any(re.split(r"[./]", file.path, maxsplit=1)[0] == module for file in files):
        raise refuse_code(
            f"{folder} does not hold the module {module} of {entry_point}: expected {module}/ or {module}.py in it, or "
            f"the package folder {module} itself, with an __init__.py"
        )
