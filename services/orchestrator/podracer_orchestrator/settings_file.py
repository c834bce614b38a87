"""A file that an operator writes, read again whenever it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from podracer_core.errors import InvalidInput

__all__ = ["SettingsFile"]

logger = logging.getLogger(__name__)

Content = TypeVar("Content")


class SettingsFile(Generic[Content]):
    """One that has come to be wrong leaves what was, and says so once."""

    def __init__(self, path: Path, parse: Callable[[Path], Content]) -> None:
        """Raises InvalidInput, as `parse` does, for a file that cannot be read or is wrong."""
        self._path, self._parse = path, parse
        self._stamp = _stamp(path)
        self._content = parse(path)

    def read(self) -> Content:
        """What it says now. It is shared: never change it."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._content = self._parse(self._path)
            except InvalidInput as error:
                logger.error("%s stays as it was: %s", self._path, error)
        return self._content


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
