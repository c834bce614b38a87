"""Uploads in progress: what they reserve, and what of them may lie in the folder for temporary
files at a time; and the earlier contents of names.

They are in memory alone: one process serves, and no upload outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer_core.errors import Exhausted, NotFound
from podracer_core.storage import UPLOADS_FOLDER, ObjectStore
from podracer_orchestrator.jobs import founders
from podracer_orchestrator.stored_messages import spec_of
from podracer_orchestrator.tables import ArtifactRow, JobFileRow, JobRow
from podracer_orchestrator.transactions import Transactions
from podracer_platform.attachments import MAX_DATA_BYTES

Message = TypeVar("Message")

PROJECT_BYTES, ALL_BYTES = MAX_DATA_BYTES, MAX_DATA_BYTES * 7 // 4
"""The most bytes of a project's drafts, and of all drafts: of the 4 GiB that deploy/k8s has for
them."""
PROJECT_UPLOADS, MOST_WAITING, WAIT_S = 8, 100, 60.0
"""The most uploads of a project at a time; others wait, so many and for so long."""
IDLE_S = 30.0
"""The longest time between two messages of an upload; all of them may take this, and as long as a
slow client needs."""
SLOWEST_BYTES_PER_S = 1 << 18


class Uploads:
    """The uploads in progress by project, and a lock for each object."""

    def __init__(self) -> None:
        self._reserved: dict[str, list[int]] = defaultdict(list)
        self._drafts: dict[str, list[int]] = defaultdict(list)
        self._ended = asyncio.Event()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def in_progress(self, project: str) -> tuple[int, int]:
        """The bytes and the number of a project's uploads that have been announced and not
        ended."""
        return sum(self._reserved[project]), len(self._reserved[project])

    def storing(self, key: str) -> asyncio.Lock:
        """The lock that is held from storing an object until recording it, and while deleting
        it."""
        return self._locks.setdefault(key, asyncio.Lock())

    @asynccontextmanager
    async def room(
        self, project: str, size_bytes: int, require: Callable[[int, int], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Reserve the bytes of an upload, and wait for room for its draft.

        `require` raises unless the project may also have this one, besides that many bytes and
        uploads in progress. Raises Exhausted if there is no room."""
        other_bytes, others = self.in_progress(project)
        if others >= MOST_WAITING:
            raise _busy(f"the project {project} has {others} uploads in progress")
        self._reserved[project].append(size_bytes)
        try:
            await require(other_bytes, others)
            await self._wait(project, size_bytes)
            self._drafts[project].append(size_bytes)
            try:
                yield
            finally:
                self._drafts[project].remove(size_bytes)
                self._ended.set()
                self._ended = asyncio.Event()
        finally:
            self._reserved[project].remove(size_bytes)

    async def _wait(self, project: str, size_bytes: int) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._fits(project, size_bytes):
                    await self._ended.wait()
        except TimeoutError:
            raise _busy(f"other uploads leave no room for {size_bytes} bytes") from None

    def _fits(self, project: str, size_bytes: int) -> bool:
        own, everything = self._drafts[project], sum(map(sum, self._drafts.values()))
        fits = sum(own) + size_bytes <= PROJECT_BYTES and everything + size_bytes <= ALL_BYTES
        return fits and len(own) < PROJECT_UPLOADS


async def in_time(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """The messages of an upload. Raises TimeoutError if one is late."""
    while True:
        async with asyncio.timeout(IDLE_S):
            message = await anext(messages, None)
        if message is None:
            return
        yield message


def _busy(problem: str) -> Exhausted:
    return Exhausted(f"{problem}: try again later", reason="UPLOADS_BUSY", retry_after_s=5)


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
        if former.key not in founders.keys(spec_of(session.get_one(JobRow, user.job_uid))):
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
