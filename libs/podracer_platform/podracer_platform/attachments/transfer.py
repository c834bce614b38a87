"""Files from one service to another: both ends of PutFile, and the receiving end of Download."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from podracer.common.v1 import file_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2
from podracer.worker.v1 import worker_service_pb2
from podracer_core.catalogue import StoredFile
from podracer_core.errors import AlreadyExists, DataCorrupted, Exhausted, InvalidInput
from podracer_platform.attachments.cache import FileCache
from podracer_platform.attachments.code_archive import CHUNK_BYTES, MAX_DATA_BYTES
from podracer_platform.rpc import Backoff

_CONCURRENT = 2
_LEAST_TIMEOUT_S = 30.0
_SLOWEST_BYTES_PER_S = 1 << 20
_RETRY_S = (0.1, 2.0)


PutRequest = worker_service_pb2.PutFileRequest | evaluator_service_pb2.PutFileRequest


class FileReceiver:
    """The server's end. Received files stay in the cache."""

    def __init__(self, cache: FileCache) -> None:
        self._cache = cache
        self._places = threading.BoundedSemaphore(_CONCURRENT)

    def receive(self, requests: Iterator[PutRequest]) -> bool:
        """Receive one file. Returns whether the cache had it already; then its bytes are not read.

        Raises InvalidInput for an invalid header and for bytes that do not match it, Exhausted with
        too many transfers at a time, and the cache's errors."""
        first = next(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidInput("a file begins with its header", reason="INVALID_FILE")
        file = _announced(first.header)
        if (held := self._cache.hold(file)) is not None:
            held.close()
            return True
        if not self._places.acquire(blocking=False):
            message = f"{_CONCURRENT} files are on their way here already; try again in a second"
            raise Exhausted(message, reason="TOO_MANY_FILES", retry_after_s=1)
        try:
            self._cache.add(file, _pieces(requests)).close()
        finally:
            self._places.release()
        return False


def put_file(
    put: Callable[..., Any], request: Callable[..., Any], file: StoredFile, path: Path
) -> None:
    """The caller's end: send the file at `path`. `put` is a stub's PutFile, `request` makes its
    messages.

    Repeats the call while the server is busy, for as long as a slow network would need for the
    file."""
    deadline = time.monotonic() + _LEAST_TIMEOUT_S + file.size_bytes / _SLOWEST_BYTES_PER_S
    waits = Backoff(*_RETRY_S)
    while True:
        header = file_pb2.FileHeader(sha256=file.sha256, size_bytes=file.size_bytes, name=file.name)
        try:
            put(_requests(request, header, path), timeout=max(deadline - time.monotonic(), 1e-3))
            return
        except Exhausted:
            wait_s = next(waits)
            if time.monotonic() + wait_s > deadline:
                raise
            time.sleep(wait_s)


def file_pieces(path: Path) -> Iterator[bytes]:
    """The content of a file in pieces that fit in a message."""
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in lower-case hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _requests(
    request: Callable[..., Any], header: file_pb2.FileHeader, path: Path
) -> Iterator[Any]:
    yield request(header=header)
    for data in file_pieces(path):
        yield request(data=data)


def _announced(header: file_pb2.FileHeader) -> StoredFile:
    file = StoredFile(header.sha256, header.sha256, header.size_bytes, header.name)
    if file.size_bytes > MAX_DATA_BYTES:
        raise InvalidInput(
            f"{file.size_bytes} bytes are too many: at most {MAX_DATA_BYTES}", reason="INVALID_FILE"
        )
    return file


def _pieces(requests: Iterator[PutRequest]) -> Iterator[bytes]:
    for request in requests:
        if request.WhichOneof("part") != "data" or len(request.data) > CHUNK_BYTES:
            raise InvalidInput(
                f"expected data of at most {CHUNK_BYTES} bytes a message", reason="INVALID_FILE"
            )
        yield request.data


def receive_artifact(
    responses: Iterable[artifact_service_pb2.DownloadResponse], target: Path
) -> artifact_service_pb2.Artifact:
    """Write the files of a Download stream below `target`, a folder that must be missing or empty.

    `target` appears complete, or not at all. Raises AlreadyExists if it is not empty, DataCorrupted
    if a file does not match its header, InvalidInput when the folder cannot be written."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AlreadyExists(
            f"{target} is there already and not empty; choose another place", path=target
        )
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
        raise InvalidInput(
            f"cannot write {target}: {error.strerror}", reason="UNWRITABLE_FOLDER"
        ) from error
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
        if (
            relative.is_absolute()
            or not relative.parts
            or ".." in relative.parts
            or "\0" in header.path
        ):
            raise DataCorrupted(
                f"the download holds the path {header.path!r}, expected one below its folder"
            )
        path = folder.joinpath(*relative.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._header = header
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BinaryIO = path.open("xb")

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)
        if self._size > self._header.size_bytes:  # a server that lies sends without an end
            self.finish()
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()
        if self._size != self._header.size_bytes or self._digest.hexdigest() != self._header.sha256:
            raise DataCorrupted(
                f"{self._header.path} arrived with {self._size} bytes and SHA-256 "
                f"{self._digest.hexdigest()}, expected {self._header.size_bytes} and "
                f"{self._header.sha256}",
                path=self._header.path,
            )

    def close(self) -> None:
        self._file.close()
