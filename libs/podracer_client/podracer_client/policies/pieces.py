"""A file that an evaluator sends piece by piece, after a header with its SHA-256."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from podracer_core.errors import DataCorrupted, InvalidInput


def write_pieces(pieces: Iterable[Any], output: Path) -> Any:
    """Write the file of ExportPolicy or RecordVideo, whole or not at all; its header.

    Raises DataCorrupted, InvalidInput when it cannot be written.
    """
    header: Any = None
    digest = hashlib.sha256()
    try:
        with tempfile.NamedTemporaryFile(
            prefix=f".{output.name}.", dir=output.absolute().parent
        ) as file:
            for piece in pieces:
                if piece.WhichOneof("part") == "header":
                    header = piece.header
                else:
                    digest.update(piece.data)
                    file.write(piece.data)
            if header is None or digest.hexdigest() != header.sha256:
                raise DataCorrupted("the file arrived incomplete; nothing was written")
            file.flush()
            Path(file.name).chmod(0o644)
            output.unlink(missing_ok=True)
            output.hardlink_to(file.name)
    except OSError as error:
        raise InvalidInput(f"cannot write {output}: {error.strerror}", path=output) from error
    return header
