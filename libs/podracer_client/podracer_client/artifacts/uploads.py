"""A job's code and data on their way to the object store."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from podracer.orchestrator.v1 import artifact_service_pb2, artifact_service_pb2_grpc
from podracer_client.names import DEFAULT_PROJECT
from podracer_core.catalogue import StoredFile
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.attachments import (
    CHUNK_BYTES,
    MAX_DATA_BYTES,
    file_pieces,
    mebibytes,
    pack_code,
    sha256_of,
)
from podracer_platform.jobs import JobSpec

__all__ = ["upload_bytes", "upload_file", "upload_files"]

_CODE_NAME = "code.zip"
_LEAST_TIMEOUT_S = 60.0
_SLOWEST_BYTES_PER_S = 1 << 18
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")

Store = artifact_service_pb2_grpc.ArtifactServiceStub
Header = artifact_service_pb2.UploadHeader


def upload_files(store: Store, spec: JobSpec) -> JobSpec:
    """Upload the code folder and data sets of `spec`; returns it with references to the object
    store.

    Files that the store has already, by SHA-256, are not sent again. Raises InvalidInput that names
    the field of a file that cannot be sent, and the server's errors."""
    environment = spec.environment
    if environment.code_path:
        code = _upload_code(store, Path(environment.code_path), environment.entry_point)
        environment = replace(environment, code_path="", code=code)
    data = {
        name: _upload_data_set(store, name, Path(file)) if isinstance(file, str) else file
        for name, file in spec.data.items()
    }
    return replace(spec, environment=environment, data=data)


def upload_file(store: Store, header: Header, path: Path) -> artifact_service_pb2.Artifact:
    """Store a file under the name of `header`; its size and SHA-256 are filled in."""
    header.sha256, header.size_bytes = sha256_of(path), path.stat().st_size
    return store.Upload(_requests(header, file_pieces(path)), timeout=_timeout_s(header)).artifact


def _upload_code(store: Store, folder: Path, entry_point: str) -> StoredFile:
    header = Header(kind=artifact_service_pb2.ARTIFACT_KIND_CODE)
    return upload_bytes(store, header, _CODE_NAME, pack_code(folder, entry_point))


def upload_bytes(store: Store, header: Header, name: str, packed: bytes) -> StoredFile:
    """Store `packed` unless the store has it; `name` is its local name."""
    header.sha256, header.size_bytes = hashlib.sha256(packed).hexdigest(), len(packed)
    pieces = (packed[start : start + CHUNK_BYTES] for start in range(0, len(packed), CHUNK_BYTES))
    return _upload(store, header, name, pieces)


def _upload_data_set(store: Store, name: str, path: Path) -> StoredFile:
    kind = artifact_service_pb2.ARTIFACT_KIND_DATA_SET
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_DATA_BYTES:
            what = mebibytes(status.st_size) if stat.S_ISREG(status.st_mode) else "no file"
            raise _refused(
                name, f"{path} is {what}, expected a file of at most {mebibytes(MAX_DATA_BYTES)}"
            )
        header = Header(kind=kind, sha256=sha256_of(path), size_bytes=status.st_size)
    except OSError as error:
        raise _refused(name, f"cannot read {path}: {error.strerror}") from error
    return _upload(store, header, _plain_name(path), file_pieces(path))


def _refused(name: str, problem: str) -> InvalidInput:
    return InvalidInput(problem, field=f"data.{name}")


def _upload(store: Store, header: Header, name: str, pieces: Iterator[bytes]) -> StoredFile:
    """Store the file unless the store has it; `name` is its local name."""
    header.parent = DEFAULT_PROJECT
    request = artifact_service_pb2.GetArtifactRequest(
        name=f"{DEFAULT_PROJECT}/artifacts/{header.artifact_id or header.sha256}"
    )
    try:
        artifact = store.GetArtifact(request).artifact
    except NotFound:
        artifact = store.Upload(_requests(header, pieces), timeout=_timeout_s(header)).artifact
    return StoredFile(artifact.uri, header.sha256, header.size_bytes, name)


def _timeout_s(header: Header) -> float:
    return _LEAST_TIMEOUT_S + header.size_bytes / _SLOWEST_BYTES_PER_S


def _requests(
    header: Header, pieces: Iterator[bytes]
) -> Iterator[artifact_service_pb2.UploadRequest]:
    yield artifact_service_pb2.UploadRequest(header=header)
    for piece in pieces:
        yield artifact_service_pb2.UploadRequest(data=piece)


def _plain_name(path: Path) -> str:
    """The file's name in portable characters; its ending stays."""
    name = _NOT_IN_NAMES.sub("_", path.name)[-99:]
    return name if re.match(r"\w", name) else f"_{name}"
