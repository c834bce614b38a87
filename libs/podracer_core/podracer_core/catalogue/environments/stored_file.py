"""A file of a user's in the object store: packed code, or a data set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from podracer_core.errors import FieldViolation, InvalidInput

__all__ = ["StoredFile"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Where a file is and what it is; whoever fetches it verifies it.

    key         in the object store
    sha256      of its bytes, 64 lower-case hexadecimal digits
    size_bytes  its length
    name        of the file that it was made from, without folders; empty where that does not matter
    """

    key: str
    sha256: str
    size_bytes: int
    name: str = ""

    def __post_init__(self) -> None:
        violations = list(self._violations())
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations, reason="INVALID_FILE_REFERENCE")

    def _violations(self) -> list[FieldViolation]:
        found = []
        if not self.key:
            found.append(FieldViolation("key", "is missing"))
        if not _SHA256.fullmatch(self.sha256):
            found.append(FieldViolation("sha256", "expected 64 lower-case hexadecimal digits"))
        if self.size_bytes < 0:
            found.append(FieldViolation("size_bytes", f"expected 0 or more, got {self.size_bytes}"))
        if self.name and not _NAME.fullmatch(self.name):
            message = f"expected letters, digits, '.', '-' and '_', at most 100, got {self.name[:100]!r}"
            found.append(FieldViolation("name", message))
        return found

    @property
    def local_name(self) -> str:
        """What a local copy is called: the hash, with the ending that tells the format (`….csv`)."""
        return self.sha256 + "".join(PurePosixPath(self.name).suffixes[-2:])

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values: `StoredFile(**file.to_json())` is equal to it."""
        return {"key": self.key, "sha256": self.sha256, "size_bytes": self.size_bytes, "name": self.name}
