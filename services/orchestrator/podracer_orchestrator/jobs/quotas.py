"""How much of everything a project may have: a file that an operator writes, read again whenever it changes.

```json
{"projects/research": {"jobs": 20, "pods": 32, "upload_bytes": 100000000000}, "*": {"jobs": 5, "pods": 8}}
```

`*` is for the projects that are not named; what is left out has no limit.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer_core.errors import Exhausted, InvalidInput
from podracer_orchestrator.jobs.state import LIVE_STATES
from podracer_orchestrator.tables import ArtifactRow, JobRow, LeaseRow, LeaseState

logger = logging.getLogger(__name__)

OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a project: jobs that have not ended, pods that work at the same time, bytes of uploaded files."""

    jobs: float = math.inf
    pods: float = math.inf
    upload_bytes: float = math.inf


UNLIMITED = Quota()


class Quotas:
    """The quotas of a file, which is read again whenever it changes; without one nothing is limited."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises InvalidInput for a file that cannot be read, or says what is none."""
        self._path, self._stamp = path, _stamp(path)
        self._quotas = {} if path is None else read_quotas(path)

    def of(self, project: str) -> Quota:
        """A project's; `project` is its id. A file that has become wrong is logged once, and changes nothing."""
        stamp = _stamp(self._path)
        if self._path is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._quotas = read_quotas(self._path)
            except InvalidInput as error:
                logger.error("%s stays as it was: %s", self._path, error)
        return self._quotas.get(f"projects/{project}") or self._quotas.get(OTHERS) or UNLIMITED


def require_job(session: Session, project: str, quota: Quota) -> None:
    """Raise Exhausted (QUOTA_EXCEEDED) where a project may not have another job now."""
    live = [state.value for state in LIVE_STATES]
    query = select(func.count()).where(JobRow.project == project, JobRow.state.in_(live))
    count = session.scalars(query).one()
    if count >= quota.jobs:
        raise _exceeded(project, f"has {count} unfinished jobs, it may have {quota.jobs:g}: wait for one, or cancel it")


def require_upload(session: Session, project: str, size_bytes: int, quota: Quota) -> None:
    """Raise Exhausted (QUOTA_EXCEEDED) where a project may not store so many bytes more."""
    query = select(func.coalesce(func.sum(ArtifactRow.size_bytes), 0)).where(ArtifactRow.project == project)
    stored = int(session.scalars(query).one())
    if stored + size_bytes > quota.upload_bytes:
        what = f"has uploads of {stored} bytes, with {size_bytes} more it would pass its {quota.upload_bytes:g}"
        raise _exceeded(project, f"{what}: delete some")


def pods_of(session: Session) -> dict[str, int]:
    """Pods that work, by project."""
    query = select(JobRow.project, func.count()).join(LeaseRow, LeaseRow.job_uid == JobRow.uid)
    rows = session.execute(query.where(LeaseRow.state == LeaseState.HELD).group_by(JobRow.project))
    return dict(rows.all())


def read_quotas(path: Path) -> dict[str, Quota]:
    """The quotas of a file, by project. Raises InvalidInput, naming the place."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _wrong(path, f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _wrong(path, 'expected an object such as {"projects/p": {"jobs": 5}}')
    return {project: _quota(path, project, limits) for project, limits in found.items()}


def _quota(path: Path, project: str, limits: Any) -> Quota:
    known = [field.name for field in fields(Quota)]
    if project != OTHERS and not project.startswith("projects/"):
        raise _wrong(path, f"{project!r} is no project: expected projects/…, or * for those that are not named")
    if not isinstance(limits, dict):
        raise _wrong(path, f"{project}: expected an object with {', '.join(known)}")
    for name, value in limits.items():
        if name not in known:
            raise _wrong(path, f"{project}: {name!r} is unknown, expected {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong(path, f"{project}: {name} is {value!r}, expected a whole number of 0 or more")
    return Quota(**limits)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """What tells a changed file; None where there is none."""
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _wrong(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(f"quotas {path}: {problem}", reason="INVALID_QUOTAS")


def _exceeded(project: str, what: str) -> Exhausted:
    return Exhausted(f"the project {project} {what}", reason="QUOTA_EXCEEDED", project=project)
