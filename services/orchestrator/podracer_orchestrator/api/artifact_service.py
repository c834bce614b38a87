"""ArtifactService: files of jobs, for clients. Bytes pass through in pieces; nothing is held whole
in memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any

import grpc
from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer.orchestrator.v1 import artifact_service_pb2_grpc
from podracer_core.errors import (
    AlreadyExists,
    DataCorrupted,
    DeadlineExpired,
    Exhausted,
    Fenced,
    FieldViolation,
    InvalidInput,
    NotFound,
    PodracerError,
)
from podracer_core.storage import (
    CHUNK_BYTES,
    FILE_NAME,
    ManifestFile,
    ObjectStore,
    artifact_key,
    read_manifest,
)
from podracer_orchestrator.api.messages import enum_name
from podracer_orchestrator.artifacts import (
    IDLE_S,
    SLOWEST_BYTES_PER_S,
    Found,
    Uploads,
    artifacts,
    in_time,
    uploads,
)
from podracer_orchestrator.jobs import Quotas, founders, require
from podracer_orchestrator.stored_messages import timestamp
from podracer_orchestrator.tables import ArtifactRow
from podracer_orchestrator.transactions import Clock, Transactions
from podracer_platform.attachments import MAX_DATA_BYTES, MAX_PACKED_BYTES
from podracer_platform.rpc import resource_names as names

MAX_UPLOAD_BYTES = MAX_DATA_BYTES
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = "content"
_READ_ON_S = 2.0

Context = grpc.aio.ServicerContext[Any, Any]


class ArtifactServicer(artifact_service_pb2_grpc.ArtifactServiceServicer):
    """Answers clients."""

    def __init__(
        self,
        transactions: Transactions,
        store: ObjectStore,
        uploads: Uploads,
        clock: Clock,
        quotas: Quotas,
    ) -> None:
        self._transactions = transactions
        self._quotas = quotas
        self._store = store
        self._uploads = uploads
        self._clock = clock

    async def Upload(
        self, request_iterator: AsyncIterator[artifact_pb2.UploadRequest], context: Context
    ) -> artifact_pb2.UploadResponse:
        requests = aiter(request_iterator)
        try:
            return await self._upload(in_time(requests))
        except TimeoutError:
            slow = (
                f"nothing came for {IDLE_S:g} s, or less than {SLOWEST_BYTES_PER_S} bytes a "
                "second in all"
            )
            raise DeadlineExpired(slow, reason="UPLOAD_SLOW") from None
        except PodracerError:
            await _read_on(requests)
            raise

    async def _upload(
        self, requests: AsyncIterator[artifact_pb2.UploadRequest]
    ) -> artifact_pb2.UploadResponse:
        first = await anext(requests, artifact_pb2.UploadRequest())
        header = (
            first.header if first.WhichOneof("part") == "header" else artifact_pb2.UploadHeader()
        )
        row = self._row(header)
        quota = self._quotas.of(row.project)

        def require_all(session: Session, other_bytes: int = 0, others: int = 0) -> None:
            if not artifacts.is_there(
                session, row, replace=header.replace, replaced_sha256=header.replaced_sha256
            ):
                require(session, row.project, quota, "upload_bytes", row.size_bytes + other_bytes)
                require(session, row.project, quota, "stored_bytes", row.size_bytes + other_bytes)
                require(session, row.project, quota, "artifacts", 1 + others)

        def keep(session: Session) -> Found:
            require_all(session)  # others may have come first
            return artifacts.store_upload(
                session, row, replace=header.replace, replaced_sha256=header.replaced_sha256
            )

        async def reserve(other_bytes: int, others: int) -> None:
            await self._transactions.read(lambda session: require_all(session, other_bytes, others))

        async with self._uploads.room(row.project, row.size_bytes, reserve):
            found = await self._store_upload(requests, row, keep)
        return artifact_pb2.UploadResponse(artifact=await self._message(found))

    async def _store_upload(
        self,
        requests: AsyncIterator[artifact_pb2.UploadRequest],
        row: ArtifactRow,
        keep: Callable[[Session], Found],
    ) -> Found:
        with tempfile.NamedTemporaryFile() as draft:
            async with asyncio.timeout(IDLE_S + row.size_bytes / SLOWEST_BYTES_PER_S):
                await _receive(requests, draft, row)
            async with self._uploads.storing(row.key):
                await asyncio.to_thread(self._store.put, row.key, Path(draft.name))
                try:
                    return await self._transactions.write(keep)
                except (Exhausted, AlreadyExists, Fenced, InvalidInput):
                    await uploads.delete_unless_recorded(self._transactions, self._store, row.key)
                    raise

    async def Download(
        self, request: artifact_pb2.DownloadRequest, context: Context
    ) -> AsyncIterator[artifact_pb2.DownloadResponse]:
        found = await self._transactions.read(lambda session: artifacts.find(session, request.name))
        files = await self._files(found)
        unknown = sorted(set(request.paths) - {file.path for file in files})
        if unknown:
            raise NotFound(f"{found.name} has no file {', '.join(unknown)}")
        yield artifact_pb2.DownloadResponse(artifact=_message(found, files))
        for file in files:
            if request.paths and file.path not in request.paths:
                continue
            yield artifact_pb2.DownloadResponse(file=_file_message(file))
            async for piece in self._pieces(found, file):
                yield artifact_pb2.DownloadResponse(data=piece)

    async def GetArtifact(
        self, request: artifact_pb2.GetArtifactRequest, context: Context
    ) -> artifact_pb2.GetArtifactResponse:
        found = await self._transactions.read(lambda session: artifacts.find(session, request.name))
        return artifact_pb2.GetArtifactResponse(artifact=await self._message(found))

    async def ListArtifacts(
        self, request: artifact_pb2.ListArtifactsRequest, context: Context
    ) -> artifact_pb2.ListArtifactsResponse:
        parent = names.parse_any(
            ("job", "project"), request.parent or f"projects/{names.DEFAULT_PROJECT}", "parent"
        )
        kind = "" if not request.kind else _kind_name(request.kind)
        token, size = request.page_token, request.page_size or 100
        if token and not (token.isascii() and token.isdecimal() and len(token) < 18):
            raise names.wrong_field("page_token", "was not given by a former response")
        first = int(token or 0)
        found = await self._transactions.read(
            lambda session: artifacts.listed(session, parent, kind, first, size + 1)
        )
        # A listing is short: files are told by GetArtifact, which reads the manifest.
        token = str(first + size) if len(found) > size else ""
        return artifact_pb2.ListArtifactsResponse(
            artifacts=[_message(each, ()) for each in found[:size]], next_page_token=token
        )

    async def DeleteArtifact(
        self, request: artifact_pb2.DeleteArtifactRequest, context: Context
    ) -> artifact_pb2.DeleteArtifactResponse:
        found = await self._transactions.write(
            lambda session: artifacts.remove_upload(session, request.name)
        )
        async with self._uploads.storing(found.uri):
            await uploads.delete_unless_recorded(self._transactions, self._store, found.uri)
        return artifact_pb2.DeleteArtifactResponse()

    def _row(self, header: artifact_pb2.UploadHeader) -> ArtifactRow:
        """The row of a checked header. Raises InvalidInput, or Exhausted for too large a file."""
        project = names.parse_parent(header.parent)
        violations = []
        if not header.kind or _kind_name(header.kind) == artifacts.CHECKPOINT:
            violations.append(
                FieldViolation("header.kind", "expected POLICY, REPORT, CODE or DATA_SET")
            )
        if not _SHA256.fullmatch(header.sha256):
            violations.append(
                FieldViolation("header.sha256", "expected 64 lower-case hexadecimal digits")
            )
        if header.size_bytes < 0:
            violations.append(
                FieldViolation("header.size_bytes", f"is {header.size_bytes}, expected 0 or more")
            )
        if violations:
            raise InvalidInput(
                "; ".join(map(str, violations)), violations=violations, reason="INVALID_UPLOAD"
            )
        kind = _kind_name(header.kind)
        limit = MAX_PACKED_BYTES if kind == founders.CODE else MAX_UPLOAD_BYTES
        if header.size_bytes > limit:
            raise Exhausted(
                f"{header.size_bytes} bytes are too many: of {kind} at most {limit} are stored"
            )
        if header.replace and not header.artifact_id:
            message = "is for an upload with an artifact_id: without one its name is its SHA-256"
            raise InvalidInput(
                message,
                violations=[FieldViolation("header.replace", message)],
                reason="INVALID_UPLOAD",
            )
        if header.replaced_sha256 and not header.replace:
            message = "is for an upload with `replace`"
            violations = [FieldViolation("header.replaced_sha256", message)]
            raise InvalidInput(
                f"replaced_sha256 {message}", violations=violations, reason="INVALID_UPLOAD"
            )
        if header.artifact_id:
            names.check_label(header.artifact_id, "header.artifact_id")
        artifact_id = header.artifact_id or header.sha256
        return ArtifactRow(
            project=project,
            artifact_id=artifact_id,
            request_id=header.request_id or None,
            kind=kind,
            # The content is part of the key, so a failed or repeated upload does not overwrite
            # other bytes.
            key=artifact_key(project, artifact_id, f"{header.sha256[:16]}-{_FILE}"),
            size_bytes=header.size_bytes,
            sha256=header.sha256,
            create_time=self._clock.now(),
        )

    async def _files(self, found: Found) -> tuple[ManifestFile, ...]:
        """Files by the manifest. Raises DataCorrupted where it is not the one that was
        committed."""
        if not found.has_manifest:
            return tuple(artifacts.files_of(found, None))
        manifest = await asyncio.to_thread(read_manifest, self._store, found.uri, found.sha256)
        size = (await asyncio.to_thread(self._store.stat, f"{found.uri}{FILE_NAME}")).size_bytes
        return tuple(artifacts.files_of(found, manifest, size))

    async def _pieces(self, found: Found, file: ManifestFile) -> AsyncIterator[bytes]:
        """A file's bytes. Raises DataCorrupted at its end where they are not what was recorded."""
        key = file.key(found.uri) if found.has_manifest else found.uri
        pieces, digest = self._store.read_chunks(key, CHUNK_BYTES), hashlib.sha256()
        while piece := await asyncio.to_thread(next, pieces, b""):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != file.sha256:
            raise DataCorrupted(
                f"{key} has been altered: its SHA-256 is not the recorded one", key=key
            )

    async def _message(self, found: Found) -> artifact_pb2.Artifact:
        return _message(found, await self._files(found))


async def _read_on(requests: AsyncIterator[artifact_pb2.UploadRequest]) -> None:
    """Let a client finish sending, for a while: a client that is cut off does not see the error."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READ_ON_S):
            async for _ in requests:
                pass


async def _receive(
    requests: AsyncIterator[artifact_pb2.UploadRequest], draft: IO[bytes], row: ArtifactRow
) -> None:
    """Write the pieces to `draft`. Raises InvalidInput unless they are what the header
    announced."""
    digest, received = hashlib.sha256(), 0
    async for request in requests:
        received += len(request.data)
        if (
            request.WhichOneof("part") != "data"
            or len(request.data) > CHUNK_BYTES
            or received > row.size_bytes
        ):
            raise InvalidInput(
                f"expected data of at most {CHUNK_BYTES} bytes a message, {row.size_bytes} in all",
                reason="INVALID_UPLOAD",
            )
        digest.update(request.data)
        await asyncio.to_thread(draft.write, request.data)
    await asyncio.to_thread(draft.flush)
    if (received, digest.hexdigest()) != (row.size_bytes, row.sha256):
        raise InvalidInput(
            f"received {received} bytes with SHA-256 {digest.hexdigest()}, announced were "
            f"{row.size_bytes} with {row.sha256}",
            reason="INVALID_UPLOAD",
        )


def _message(found: Found, files: tuple[ManifestFile, ...]) -> artifact_pb2.Artifact:
    return artifact_pb2.Artifact(
        name=found.name,
        kind=artifact_pb2.ArtifactKind.Value(f"ARTIFACT_KIND_{found.kind}"),
        files=[_file_message(file) for file in files],
        size_bytes=found.size_bytes,
        uri=found.uri,
        sha256=found.sha256,
        create_time=timestamp(found.create_time),
    )


def _file_message(file: ManifestFile) -> artifact_pb2.ArtifactFile:
    return artifact_pb2.ArtifactFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)


def _kind_name(kind: int) -> str:
    return enum_name(artifact_pb2.ArtifactKind, kind, "kind")
