"""Files on their way to a server and back: a job's code and data, and named data sets."""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from podracer.orchestrator.v1 import artifact_service_pb2, artifact_service_pb2_grpc
from podracer_client.names import DEFAULT_PROJECT, enum_word
from podracer_client.servers import Servers, pages
from podracer_core.catalogue import StoredFile
from podracer_core.errors import AlreadyExists, DataCorrupted, InvalidInput, NotFound
from podracer_platform.attachments import (
    CHUNK_BYTES,
    MAX_DATA_BYTES,
    file_pieces,
    mebibytes,
    pack_code,
    sha256_of,
)
from podracer_platform.jobs import JobSpec

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
        packed = pack_code(Path(environment.code_path), environment.entry_point)
        header = Header(kind=artifact_service_pb2.ARTIFACT_KIND_CODE)
        code = upload_bytes(store, header, "code.zip", packed)
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


_KIND = artifact_service_pb2.ARTIFACT_KIND_DATA_SET

Artifact = artifact_service_pb2.Artifact


def _resource(name: str) -> str:
    """The resource name of a data set; `name` is its short name or its resource name."""
    return name if name.startswith("projects/") else f"{DEFAULT_PROJECT}/artifacts/{name}"


def store_data_set(servers: Servers, name: str, path: Path, *, former_sha256: str = "") -> Artifact:
    """Store the file as the new content of `name`. Jobs that use its former content keep that.

    Raises Fenced (ARTIFACT_CHANGED) if `name` no longer has the content `former_sha256`, which the
    file was made from."""
    header = artifact_service_pb2.UploadHeader(
        parent=DEFAULT_PROJECT,
        artifact_id=name,
        kind=_KIND,
        replace=True,
        replaced_sha256=former_sha256,
    )
    return upload_file(servers.artifact_service, header, path)


def data_sets(servers: Servers) -> Iterator[Artifact]:
    """The project's data sets, newest first. Those uploaded by a job file's `data:` are named by
    their SHA-256."""
    request = artifact_service_pb2.ListArtifactsRequest(parent=DEFAULT_PROJECT, kind=_KIND)
    for page in pages(servers.artifact_service.ListArtifacts, request):
        yield from page.artifacts


def describe_data_set(servers: Servers, name: str) -> Artifact:
    """A data set's artifact. Raises NotFound, and InvalidInput for an artifact that is not a data
    set."""
    try:
        artifact = servers.describe(_resource(name))
    except NotFound as error:
        raise NotFound(
            f"there is no data set {name}; `podracer data list` shows all data sets"
        ) from error
    if artifact.kind != _KIND:
        kind = enum_word(artifact_service_pb2.ArtifactKind, artifact.kind)
        raise InvalidInput(f"{name} is an artifact of kind {kind}, expected a data set")
    return artifact


@contextmanager
def download_data_set(servers: Servers, name: str) -> Iterator[tuple[Artifact, Path]]:
    """The data set's file in a temporary folder, checked against its SHA-256. Raises as
    `describe_data_set`."""
    artifact = describe_data_set(servers, name)
    with tempfile.TemporaryDirectory(prefix="podracer-data-") as folder:
        received = servers.download(artifact.name, Path(folder) / "files")
        files = [path for path in (Path(folder) / "files").iterdir() if path.is_file()]
        if not files:
            raise DataCorrupted(f"the data set {name} arrived without a file")
        yield received, files[0]


def fetch_data_set(servers: Servers, name: str, target: Path) -> Artifact:
    """Write the data set to the new file `target`. Raises AlreadyExists, and InvalidInput if it
    cannot be written."""
    if target.exists():
        raise AlreadyExists(f"{target} already exists; choose another file", path=target)
    with download_data_set(servers, name) as (artifact, file):
        try:
            shutil.copyfile(file, target)
        except OSError as error:
            raise InvalidInput(f"cannot write {target}: {error.strerror}", path=target) from error
    return artifact


def delete_data_set(servers: Servers, name: str) -> Artifact:
    """Delete a data set. Raises NotFound, and PreconditionFailed while a job needs it."""
    artifact = describe_data_set(servers, name)
    servers.artifact_service.DeleteArtifact(
        artifact_service_pb2.DeleteArtifactRequest(name=artifact.name)
    )
    return artifact
