"""Files that are there whole or not at all, and their folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from podracer_core.errors import InvalidInput

__all__ = ["make_folder", "require_makeable", "write_whole"]


def make_folder(folder: Path) -> None:
    """With its parents. Raises InvalidInput where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the folder {folder}: {error.strerror}", path=folder) from error


def require_makeable(folder: Path) -> None:
    """Raises InvalidInput where `make_folder` would, or where nothing can be written into it; makes nothing."""
    whole = folder.absolute()
    there = next(each for each in (whole, *whole.parents) if each.exists())
    if not there.is_dir():
        raise InvalidInput(f"cannot make the folder {folder}: {there} is a file", path=folder)
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidInput(f"cannot make the folder {folder}: {there} cannot be written", path=folder)


def write_whole(path: Path, content: bytes) -> None:
    """Raises InvalidInput where it cannot be written."""
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(draft).chmod(0o644)
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", path=path) from error
