"""Quotas of projects: a file of the operator, read again whenever it changes.

```json
{"projects/research": {"jobs": 20, "pods": 32, "upload_bytes": 100000000000}, "*": {"jobs": 5, "pods": 8}}
```

`*` is for all other projects; a missing limit means no limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer_core.errors import Exhausted
from podracer_orchestrator.jobs.operator_file import OperatorFile
from podracer_orchestrator.jobs.state import LIVE_STATES
from podracer_orchestrator.tables import ArtifactRow, JobRow, LeaseRow, LeaseState

OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a project: unfinished jobs, pods that work at the same time, bytes of uploaded files."""

    jobs: float = math.inf
    pods: float = math.inf
    upload_bytes: float = math.inf


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


def require_job(session: Session, project: str, quota: Quota) -> None:
    """Raise Exhausted (QUOTA_EXCEEDED) if a project may not have another job now."""
    live = [state.value for state in LIVE_STATES]
    query = select(func.count()).where(JobRow.project == project, JobRow.state.in_(live))
    count = session.scalars(query).one()
    if count >= quota.jobs:
        raise _exceeded(project, f"has {count} unfinished jobs of {quota.jobs:g} allowed: wait for one, or cancel one")


def require_upload(session: Session, project: str, size_bytes: int, quota: Quota) -> None:
    """Raise Exhausted (QUOTA_EXCEEDED) if a project may not store `size_bytes` more."""
    query = select(func.coalesce(func.sum(ArtifactRow.size_bytes), 0)).where(ArtifactRow.project == project)
    stored = int(session.scalars(query).one())
    if stored + size_bytes > quota.upload_bytes:
        what = f"has {stored} bytes of uploads; {size_bytes} more exceed its limit of {quota.upload_bytes:g}"
        raise _exceeded(project, f"{what}: delete some uploads")


def pods_of(session: Session) -> dict[str, int]:
    """Pods that work, by project."""
    query = select(JobRow.project, func.count()).join(LeaseRow, LeaseRow.job_uid == JobRow.uid)
    rows = session.execute(query.where(LeaseRow.state == LeaseState.HELD).group_by(JobRow.project))
    return dict(rows.all())


def _quota(project: str, limits: Mapping[str, Any]) -> Quota:
    if project != OTHERS and not project.startswith("projects/"):
        raise ValueError(f"{project!r} is not a project: expected projects/…, or * for all other projects")
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{project}: {name} is {value!r}, expected a whole number of 0 or more")
    return Quota(**limits)


def _exceeded(project: str, what: str) -> Exhausted:
    return Exhausted(f"the project {project} {what}", reason="QUOTA_EXCEEDED", project=project)
