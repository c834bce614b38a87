"""An operator's file: a JSON object with an entry of the same fields for each name."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from podracer_core.errors import InvalidInput

logger = logging.getLogger(__name__)

Entry = TypeVar("Entry")


class OperatorFile(Generic[Entry]):
    """The file's entries by name, read again whenever it changes; empty without a file."""

    def __init__(
        self,
        what: str,
        path: Path | None,
        fields: Sequence[str],
        parse: Callable[[str, Mapping[str, Any]], Entry],
    ) -> None:
        """`parse` makes an entry of its name and its fields; it raises ValueError for invalid ones.

        Raises InvalidInput that names the place, for a file that cannot be read or is malformed.
        """
        self._what, self._path, self._fields, self._parse = what, path, fields, parse
        self._stamp = _stamp(path)
        self._entries: Mapping[str, Entry] = {} if path is None else self._read(path)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The current entries. A file that has become invalid is logged once and changes
        nothing."""
        stamp = _stamp(self._path)
        if self._path is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._entries = self._read(self._path)
            except InvalidInput as error:
                logger.error("keeping the former content of %s: %s", self._path, error)
        return self._entries

    def _read(self, path: Path) -> Mapping[str, Entry]:
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict):
                raise ValueError("expected an object with an entry for each name")
            return {name: self._entry(name, fields) for name, fields in found.items()}
        except (OSError, ValueError) as error:
            problem = (
                f"is not valid JSON: {error}"
                if isinstance(error, json.JSONDecodeError)
                else str(error)
            )
            problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else problem
            raise InvalidInput(
                f"{self._what} {path}: {problem}", reason="INVALID_SETTING"
            ) from error

    def _entry(self, name: str, fields: Any) -> Entry:
        known = ", ".join(self._fields)
        if not isinstance(fields, dict):
            raise ValueError(f"{name}: expected an object with {known}")
        for field in fields.keys() - set(self._fields):
            raise ValueError(f"{name}: {field!r} is unknown, expected {known}")
        return self._parse(name, fields)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """A stamp that differs for a changed file; None without a file."""
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
