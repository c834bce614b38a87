"""Downloading artifacts, checked against their checksums."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from podracer.orchestrator.v1 import artifact_service_pb2
from podracer_core.errors import AlreadyExists, DataCorrupted, InvalidInput


def receive_artifact(
    responses: Iterable[artifact_service_pb2.DownloadResponse], target: Path
) -> artifact_service_pb2.Artifact:
    """Write the files of a Download stream below `target`, a folder that must not be there or be empty.

    `target` appears whole, or not at all. Raises AlreadyExists when it holds something, DataCorrupted when a
    file is not what its header says, InvalidInput when the folder cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AlreadyExists(f"{target} is there already and not empty; choose another place", path=target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            artifact = _receive_files(responses, draft)
            if target.exists():
                target.rmdir()
            draft.chmod(0o755)
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror}", reason="UNWRITABLE_FOLDER") from error
    return artifact


def _receive_files(
    responses: Iterable[artifact_service_pb2.DownloadResponse], folder: Path
) -> artifact_service_pb2.Artifact:
    artifact = artifact_service_pb2.Artifact()
    current: _IncomingFile | None = None
    try:
        for response in responses:
            match response.WhichOneof("part"):
                case "artifact":
                    artifact = response.artifact
                case "file":
                    if current is not None:
                        current.finish()
                    current = _IncomingFile(response.file, folder)
                case "data" if current is not None:
                    current.write(response.data)
                case part:
                    raise DataCorrupted(f"the download begins with {part}, expected a header")
        if current is not None:
            current.finish()
    finally:
        if current is not None:
            current.close()
    return artifact


class _IncomingFile:
    def __init__(self, header: artifact_service_pb2.ArtifactFile, folder: Path) -> None:
        relative = PurePosixPath(header.path)
        if relative.is_absolute() or not relative.parts or ".." in relative.parts:
            raise DataCorrupted(f"the download holds the path {header.path!r}, expected one below its folder")
        path = folder.joinpath(*relative.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._header = header
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BinaryIO = path.open("xb")

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()
        if self._size != self._header.size_bytes or self._digest.hexdigest() != self._header.sha256:
            raise DataCorrupted(
                f"{self._header.path} arrived with {self._size} bytes and SHA-256 {self._digest.hexdigest()}, expected "
                f"{self._header.size_bytes} and {self._header.sha256}",
                path=self._header.path,
            )

    def close(self) -> None:
        self._file.close()
