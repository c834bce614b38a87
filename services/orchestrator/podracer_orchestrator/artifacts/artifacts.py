"""Artifacts: committed checkpoints by name, and uploaded files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer_core.errors import AlreadyExists, Fenced, InvalidInput, NotFound, PreconditionFailed
from podracer_core.storage import FILE_NAME, Manifest, ManifestFile, of_project
from podracer_orchestrator.artifacts import uploads
from podracer_orchestrator.continuous import promotions
from podracer_orchestrator.jobs import founders, jobs
from podracer_orchestrator.stored_messages import final_policy
from podracer_orchestrator.tables import ArtifactRow, CheckpointRow, JobRow
from podracer_orchestrator.works import checkpoints
from podracer_platform.rpc import Name
from podracer_platform.rpc import resource_names as names

CHECKPOINT = "CHECKPOINT"
KINDS = ("checkpoint", "best checkpoint", "artifact")


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact by name: its object key, or with a manifest the prefix of its objects."""

    name: str
    kind: str
    uri: str
    sha256: str
    size_bytes: int
    create_time: datetime

    @property
    def has_manifest(self) -> bool:
        return self.kind == CHECKPOINT


def find(session: Session, text: str) -> Found:
    """The artifact of a name. Raises InvalidInput for a malformed name, NotFound if there is
    none."""
    name = names.parse_any(KINDS, text)
    if name.kind == "artifact":
        row = session.get(ArtifactRow, (name.project, name.id))
        if row is None:
            raise NotFound(f"there is no artifact {text}", name=text)
        return uploaded(row)
    job = jobs.get(session, name.project, name.job)
    is_best = name.kind == "best checkpoint"
    return checkpoint(
        job, _best(session, job) if is_best else checkpoints.find_checkpoint(session, job, name)
    )


def checkpoint(job: JobRow, row: CheckpointRow) -> Found:
    """A committed checkpoint as an artifact."""
    name = f"{row.agent}/checkpoints/{row.checkpoint_id}"
    return Found(name, CHECKPOINT, row.prefix, row.manifest_sha256, row.size_bytes, row.create_time)


def uploaded(row: ArtifactRow) -> Found:
    """An uploaded file as an artifact."""
    name = names.artifact_name(row.project, row.artifact_id)
    return Found(name, row.kind, row.key, row.sha256, row.size_bytes, row.create_time)


def files_of(
    found: Found, manifest: Manifest | None, manifest_bytes: int = 0
) -> Sequence[ManifestFile]:
    """The files of an artifact; with a manifest, itself comes last."""
    if manifest is None:
        return [ManifestFile(found.uri.rpartition("/")[2], found.size_bytes, found.sha256)]
    return [*manifest.files, ManifestFile(FILE_NAME, manifest_bytes, found.sha256)]


def store_upload(
    session: Session, row: ArtifactRow, *, replace: bool = False, replaced_sha256: str = ""
) -> Found:
    """Record an upload whose bytes are in the store. Repeating the request or the content changes
    nothing.

    Raises InvalidInput if the request had other content; AlreadyExists if the name has other
    content and the upload is not to `replace` it, or is of another kind; Fenced if it is to replace
    `replaced_sha256` and the name has another content."""
    if (former := _of_request(session, row)) is not None:
        return uploaded(former)
    present = session.get(ArtifactRow, (row.project, row.artifact_id))
    if present is not None and (present.sha256, present.kind) == (row.sha256, row.kind):
        return uploaded(present)
    _require_former(present, row, replaced_sha256)
    if present is None:
        session.add(row)
        return uploaded(row)
    _require_replaceable(present, row, replace)
    uploads.replace_content(session, present, row)
    return uploaded(present)


def is_there(
    session: Session, row: ArtifactRow, *, replace: bool = False, replaced_sha256: str = ""
) -> bool:
    """Whether the name has this content. Raises as `store_upload`, before anything is stored."""
    if _of_request(session, row) is not None:
        return True
    present = session.get(ArtifactRow, (row.project, row.artifact_id))
    if present is not None and present.sha256 == row.sha256:
        return True
    _require_former(present, row, replaced_sha256)
    if present is not None:
        _require_replaceable(present, row, replace)
    return False


def _of_request(session: Session, row: ArtifactRow) -> ArtifactRow | None:
    """What the same request has stored before. Raises InvalidInput if it had other content."""
    if row.request_id is None:
        return None
    query = select(ArtifactRow).where(
        ArtifactRow.project == row.project, ArtifactRow.request_id == row.request_id
    )
    former = session.scalar(query)
    if former is not None and (former.key, former.sha256, former.kind) != (
        row.key,
        row.sha256,
        row.kind,
    ):
        raise InvalidInput.of(
            "header.request_id", "was used for other content", reason="REQUEST_ID_REUSED"
        )
    return former


def _require_former(present: ArtifactRow | None, row: ArtifactRow, expected: str) -> None:
    found = "" if present is None else present.sha256
    if expected and found != expected:
        name = names.artifact_name(row.project, row.artifact_id)
        now = f"now has SHA-256 {found[:16]}…" if found else "no longer exists"
        message = f"{name} {now}, expected {expected[:16]}…: read it again before you replace it"
        raise Fenced(message, reason="ARTIFACT_CHANGED", name=name)


def _require_replaceable(present: ArtifactRow, row: ArtifactRow, replace: bool) -> None:
    name = names.artifact_name(row.project, row.artifact_id)
    if present.kind != row.kind:
        raise AlreadyExists(f"{name} already exists with kind {present.kind}", name=name)
    if not replace:
        raise AlreadyExists(f"{name} already exists with different content", name=name)


def remove_upload(session: Session, text: str) -> Found:
    """Delete an uploaded artifact's record.

    Raises PreconditionFailed (ARTIFACT_IN_USE) for a checkpoint, which its job owns, and for what a
    job needs."""
    name = names.parse_any(KINDS, text)
    if name.kind != "artifact":
        raise PreconditionFailed(
            f"{text} belongs to its job: delete the job", reason="ARTIFACT_IN_USE"
        )
    row = session.get(ArtifactRow, (name.project, name.id))
    if row is None:
        raise NotFound(f"there is no artifact {text}", name=text)
    founders.require_unused(session, row)
    session.delete(row)
    return uploaded(row)


def listed(session: Session, parent: Name, kind: str, first: int, limit: int) -> Sequence[Found]:
    """The artifacts of a project (uploads) or a job (checkpoints), newest first, from `first`
    on."""
    if parent.kind == "job":
        job = jobs.get(session, parent.project, parent.id)
        if kind not in ("", CHECKPOINT):
            return []
        query = (
            select(CheckpointRow).where(CheckpointRow.job_uid == job.uid).offset(first).limit(limit)
        )
        rows = session.scalars(
            query.order_by(CheckpointRow.create_time.desc(), CheckpointRow.prefix)
        ).all()
        return [checkpoint(job, row) for row in rows]
    uploads = (
        select(ArtifactRow).where(ArtifactRow.project == parent.project).offset(first).limit(limit)
    )
    if kind:
        uploads = uploads.where(ArtifactRow.kind == kind)
    ordered = uploads.order_by(ArtifactRow.create_time.desc(), ArtifactRow.artifact_id)
    return [uploaded(row) for row in session.scalars(ordered)]


def _best(session: Session, job: JobRow) -> CheckpointRow:
    """The checkpoint of a job's final policy, or of a continuous job's champion, which belongs to
    another job."""
    if job.is_continuous:
        champion = promotions.champion(session, job)
        if champion is None:
            raise NotFound(f"the job {job.job_id} has no champion yet", reason="NO_CANDIDATE")
        return _row(session, job, champion.prefix)
    final = final_policy(job) or checkpoints.unjudged_policy(session, job)
    if final is None:
        raise NotFound(f"the job {job.job_id} has no candidate yet", reason="NO_CANDIDATE")
    return _row(session, job, final.checkpoint.prefix)


def _row(session: Session, job: JobRow, prefix: str) -> CheckpointRow:
    row = session.get(CheckpointRow, prefix)
    if (
        row is None
        or (row.job_uid != job.uid and not job.is_continuous)
        or not of_project(prefix, job.project)
    ):
        raise NotFound(f"the checkpoint {prefix} is gone: its job is being deleted", prefix=prefix)
    return row
