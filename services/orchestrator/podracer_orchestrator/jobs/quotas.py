"""Quotas of projects: a file of the operator, read again whenever it changes.

```json {"projects/research": {"jobs": 20, "pods": 32, "upload_bytes": 100000000000}, "*": {"jobs":
5, "pods": 8}} ```

`*` is for all other projects; a missing limit means no limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from podracer_core.errors import Exhausted
from podracer_orchestrator.jobs.operator_file import OperatorFile
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
