"""Files of the operator, JSON objects with an entry of the same fields for each name; and the
quotas of projects, one of them, read again whenever it changes.

```json {"projects/research": {"jobs": 20, "pods": 32, "upload_bytes": 100000000000}, "*": {"jobs":
5, "pods": 8}} ```

`*` is for all other projects; a missing limit means no limit.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from podracer_core.errors import Exhausted, InvalidInput
from podracer_orchestrator.jobs.state import LIVE_STATES
from podracer_orchestrator.tables import (
    ArtifactRow,
    CheckpointRow,
    EventRow,
    JobRow,
    LeaseRow,
    LeaseState,
    PromotionRow,
)

logger = logging.getLogger(__name__)

Entry = TypeVar("Entry")


class OperatorFile(Generic[Entry]):
    """The file's entries by name, read again whenever it changes; empty without a file."""

    def __init__(
        self,
        what: str,
        path: Path | None,
        fields: Sequence[str],
        parse: Callable[[str, Mapping[str, Any]], Entry],
    ) -> None:
        """`parse` makes an entry of its name and its fields; it raises ValueError for invalid ones.

        Raises InvalidInput that names the place, for a file that cannot be read or is malformed.
        """
        self._what, self._path, self._fields, self._parse = what, path, fields, parse
        self._stamp = _stamp(path)
        self._entries: Mapping[str, Entry] = {} if path is None else self._read(path)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The current entries. A file that has become invalid is logged once and changes
        nothing."""
        stamp = _stamp(self._path)
        if self._path is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._entries = self._read(self._path)
            except InvalidInput as error:
                logger.error("keeping the former content of %s: %s", self._path, error)
        return self._entries

    def _read(self, path: Path) -> Mapping[str, Entry]:
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict):
                raise ValueError("expected an object with an entry for each name")
            return {name: self._entry(name, fields) for name, fields in found.items()}
        except (OSError, ValueError) as error:
            problem = (
                f"is not valid JSON: {error}"
                if isinstance(error, json.JSONDecodeError)
                else str(error)
            )
            problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else problem
            raise InvalidInput(
                f"{self._what} {path}: {problem}", reason="INVALID_SETTING"
            ) from error

    def _entry(self, name: str, fields: Any) -> Entry:
        known = ", ".join(self._fields)
        if not isinstance(fields, dict):
            raise ValueError(f"{name}: expected an object with {known}")
        for field in fields.keys() - set(self._fields):
            raise ValueError(f"{name}: {field!r} is unknown, expected {known}")
        return self._parse(name, fields)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """A stamp that differs for a changed file; None without a file."""
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


OTHERS = "*"
FORKED = "AGENT_FORKED"  # the kind of an event


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a project: unfinished jobs, pods that work at the same time, and what it keeps."""

    jobs: float = math.inf
    pods: float = math.inf
    upload_bytes: float = math.inf
    stored_bytes: float = math.inf
    """Of uploads, which `artifacts` counts, and of checkpoints."""
    artifacts: float = math.inf
    ended_jobs: float = math.inf
    forks: float = math.inf
    """Agents that users have forked."""
    aliases: float = math.inf


UNLIMITED = Quota()


class Quotas:
    """The quotas of a file, which is read again whenever it changes; no limits without a file."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises InvalidInput for a file that cannot be read or is malformed."""
        self._file = OperatorFile("quotas", path, [field.name for field in fields(Quota)], _quota)

    def of(self, project: str) -> Quota:
        """The quota of a project; `project` is its id."""
        quotas = self._file.entries
        return quotas.get(f"projects/{project}") or quotas.get(OTHERS) or UNLIMITED


_WHAT = {
    "jobs": ("unfinished jobs", "wait for one, or cancel one"),
    "ended_jobs": ("ended jobs", "delete some of them"),
    "upload_bytes": ("bytes of uploads", "delete some uploads"),
    "stored_bytes": ("bytes of uploads and checkpoints", "delete some uploads or ended jobs"),
    "artifacts": ("uploads", "delete some of them"),
    "forks": ("forked agents", "delete some ended jobs"),
    "aliases": ("aliases", "delete some ended jobs"),
}


def require(session: Session, project: str, quota: Quota, what: str, more: int = 1) -> None:
    """Raise Exhausted (QUOTA_EXCEEDED) if a project may not have `more` of a limit's things now."""
    limit = getattr(quota, what)
    if limit == math.inf:
        return
    count, (things, advice) = _count(session, project, what), _WHAT[what]
    if count + more > limit:
        message = (
            f"the project {project} has {count} {things}; {more} more exceed its limit of "
            f"{limit:g}: {advice}"
        )
        raise Exhausted(message, reason="QUOTA_EXCEEDED", project=project)


def require_job(session: Session, project: str, quota: Quota) -> None:
    """Raise Exhausted (QUOTA_EXCEEDED) if a project may not have another job now."""
    for what in ("jobs", "ended_jobs", "stored_bytes"):
        require(session, project, quota, what)


def _count(session: Session, project: str, what: str) -> int:
    own, live = JobRow.project == project, JobRow.state.in_([state.value for state in LIVE_STATES])
    uploads = select(func.sum(ArtifactRow.size_bytes)).where(ArtifactRow.project == project)
    aliases = func.count(PromotionRow.job_uid.concat(PromotionRow.alias).distinct())
    queries: dict[str, Select[int]] = {
        "jobs": select(func.count()).where(own, live),
        "ended_jobs": select(func.count()).where(own, ~live),
        "upload_bytes": uploads,
        "stored_bytes": select(func.sum(CheckpointRow.size_bytes)).where(
            own, CheckpointRow.job_uid == JobRow.uid
        ),
        "artifacts": select(func.count()).where(ArtifactRow.project == project),
        "forks": select(func.count()).where(
            own, EventRow.job_uid == JobRow.uid, EventRow.kind == FORKED
        ),
        "aliases": select(aliases).where(own, PromotionRow.job_uid == JobRow.uid),
    }
    count = int(session.scalar(queries[what]) or 0)
    return count + int(session.scalar(uploads) or 0) if what == "stored_bytes" else count


def pods_of(session: Session) -> dict[str, int]:
    """Pods that work, by project."""
    query = select(JobRow.project, func.count()).join(LeaseRow, LeaseRow.job_uid == JobRow.uid)
    rows = session.execute(query.where(LeaseRow.state == LeaseState.HELD).group_by(JobRow.project))
    return dict(rows.all())


def _quota(project: str, limits: Mapping[str, Any]) -> Quota:
    if project != OTHERS and not project.startswith("projects/"):
        raise ValueError(
            f"{project!r} is not a project: expected projects/…, or * for all other projects"
        )
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(
                f"{project}: {name} is {value!r}, expected a whole number of 0 or more"
            )
    return Quota(**limits)
