"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from podracer_core.errors import InvalidInput

__all__ = ["write_whole"]


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
