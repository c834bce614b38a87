"""Named data sets on a server: stored, listed, described, fetched."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podracer.orchestrator.v1 import artifact_service_pb2
from podracer_client.artifacts.uploads import upload_file
from podracer_client.names import DEFAULT_PROJECT, enum_word
from podracer_client.servers import Servers, pages
from podracer_core.errors import AlreadyExists, DataCorrupted, InvalidInput, NotFound

__all__ = [
    "data_sets",
    "delete_data_set",
    "describe_data_set",
    "download_data_set",
    "fetch_data_set",
    "store_data_set",
]

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
