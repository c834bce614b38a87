"""Earlier versions of uploaded artifacts, kept for jobs that use them.

A name's newest content is always the artifact of that name. When it is replaced, the former content
becomes its own artifact, named `NAME.` and the beginning of its SHA-256, with the same object, and
jobs that need it refer to that. It is deleted once it has not been the newest for an hour and no
job needs it. Uploads cannot have such a name, as it has a dot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer_core.errors import NotFound
from podracer_core.storage import UPLOADS_FOLDER, ObjectStore
from podracer_orchestrator.artifacts.uploads import Uploads
from podracer_orchestrator.jobs import job_files
from podracer_orchestrator.stored_messages import spec_of
from podracer_orchestrator.tables import ArtifactRow, JobFileRow, JobRow
from podracer_orchestrator.transactions import Transactions

_DIGITS = 16

logger = logging.getLogger(__name__)


def replace_content(session: Session, present: ArtifactRow, new: ArtifactRow) -> None:
    """Give the name of `present` the content of `new`, and keep the former content as a version."""
    project, name = present.project, present.artifact_id
    earlier = f"{name}.{present.sha256[:_DIGITS]}"
    former = ArtifactRow(
        project=project,
        artifact_id=earlier,
        request_id=present.request_id,
        kind=present.kind,
        key=present.key,
        size_bytes=present.size_bytes,
        sha256=present.sha256,
        create_time=new.create_time,
    )
    present.request_id, present.key, present.sha256 = new.request_id, new.key, new.sha256
    present.size_bytes, present.create_time = new.size_bytes, new.create_time
    session.flush()  # the request's id is free from here on
    kept = session.get(ArtifactRow, (project, earlier))
    if kept is None:
        session.add(former)
    else:
        kept.request_id, kept.create_time = former.request_id or kept.request_id, former.create_time
    session.flush()
    _move_jobs(session, former, name)


def _move_jobs(session: Session, former: ArtifactRow, name: str) -> None:
    """Let jobs that use the content of `former` need that version; jobs that use only the name
    still need the name."""
    there = JobFileRow.project == former.project
    query = select(JobFileRow).where(there, JobFileRow.artifact_id == name)
    has = set(
        session.scalars(
            select(JobFileRow.job_uid).where(there, JobFileRow.artifact_id == former.artifact_id)
        )
    )
    for user in session.scalars(query).all():
        if former.key not in job_files.keys(spec_of(session.get_one(JobRow, user.job_uid))):
            continue
        if user.job_uid not in has:
            session.add(
                JobFileRow(
                    job_uid=user.job_uid, project=former.project, artifact_id=former.artifact_id
                )
            )
        session.delete(user)


def forget_unneeded(session: Session, before: datetime) -> int:
    """Delete the records of earlier versions that no job needs and that were replaced before then;
    returns their number."""
    needed = (
        select(JobFileRow.job_uid)
        .where(
            JobFileRow.project == ArtifactRow.project,
            JobFileRow.artifact_id == ArtifactRow.artifact_id,
        )
        .exists()
    )
    query = select(ArtifactRow).where(
        ArtifactRow.artifact_id.contains("."), ArtifactRow.create_time < before, ~needed
    )
    rows = session.scalars(query).all()
    for row in rows:
        session.delete(row)
    return len(rows)


async def collect_uploads(
    transactions: Transactions,
    store: ObjectStore,
    uploads: Uploads,
    before: datetime,
    project: str | None,
) -> None:
    """Run `forget_unneeded`, and delete objects without an artifact that were written before then:
    those of deleted versions, and of uploads that were cut off between the store and the database.
    """
    await transactions.write(lambda session: forget_unneeded(session, before))
    for each in [project] if project is not None else await transactions.read(_projects):
        old = await asyncio.to_thread(
            _old_objects, store, f"projects/{each}/{UPLOADS_FOLDER}", before
        )
        for key in old:
            async with uploads.storing(key):
                await delete_unless_recorded(transactions, store, key, before)


async def delete_unless_recorded(
    transactions: Transactions, store: ObjectStore, key: str, before: datetime | None = None
) -> None:
    """Delete an object without an artifact, written before then; another version of its name may
    have the same one."""
    if await transactions.read(lambda session: is_recorded(session, key)):
        return
    with contextlib.suppress(NotFound):
        if before is None or (await asyncio.to_thread(store.stat, key)).modified < before:
            await asyncio.to_thread(store.delete, key)
            logger.info("deleted %s, which no artifact has", key)


def is_recorded(session: Session, key: str) -> bool:
    """Whether the object of that key is the content of an artifact."""
    return (
        session.scalar(select(ArtifactRow.artifact_id).where(ArtifactRow.key == key).limit(1))
        is not None
    )


def _projects(session: Session) -> Sequence[str]:
    rows = session.scalars(select(ArtifactRow.project).union(select(JobRow.project)))
    return sorted(rows)


def _old_objects(store: ObjectStore, prefix: str, before: datetime) -> list[str]:
    return [info.key for info in store.list(prefix) if info.modified < before]
