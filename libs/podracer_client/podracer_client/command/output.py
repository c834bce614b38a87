"""Files that a command is to write."""

from __future__ import annotations

from pathlib import Path

from podracer_core.errors import InvalidInput


def require_writable(path: Path) -> None:
    """Raise InvalidInput where no file can be written at `path`: told before the work that it would be the end of."""
    try:
        fits = not path.is_dir() and path.absolute().parent.is_dir()
    except OSError as error:  # too long a name
        raise InvalidInput(f"cannot write {path}: {error.strerror}", path=path) from error
    if not fits:
        raise InvalidInput(f"cannot write {path}: expected a file in a folder that is there", path=path)
