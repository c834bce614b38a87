"""Atomic writing of files, and their folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from podracer_core.errors import InvalidInput


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Raises InvalidInput if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"cannot make the folder {folder}: {error.strerror}", path=folder
        ) from error


def require_makeable(folder: Path) -> None:
    """Raises InvalidInput if `make_folder` would fail, or the folder is not writable; makes
    nothing."""
    whole = folder.absolute()
    there = next(each for each in (whole, *whole.parents) if each.exists())
    if not there.is_dir():
        raise InvalidInput(f"cannot make the folder {folder}: {there} is a file", path=folder)
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"cannot make the folder {folder}: {there} cannot be written", path=folder
        )


def require_writable(path: Path) -> None:
    """Raise InvalidInput if no file can be written at `path`; called before the work for it."""
    try:
        fits = not path.is_dir() and path.absolute().parent.is_dir()
    except OSError as error:  # too long a name
        raise InvalidInput(f"cannot write {path}: {error.strerror}", path=path) from error
    if not fits:
        raise InvalidInput(f"cannot write {path}: expected a file in an existing folder", path=path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that every user may read. Raises InvalidInput if it cannot be written."""
    try:
        _write(path, content, 0o644)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", path=path) from error


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user may read, and make its folders. Raises OSError if it cannot
    be written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(path, content, 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
