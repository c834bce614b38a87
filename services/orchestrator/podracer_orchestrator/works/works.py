"""Works that wait: for a pod, or for the leaderboard to say whom they train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer_orchestrator.tables import WorkKind, WorkRow, WorkState


class Waiting:
    """Which works wait to be taken up or filled, by job."""

    def __init__(self, found: Iterable[tuple[str, str, str]]) -> None:
        """`found`: job, kind and state of each sort of work that there is."""
        self._found: dict[str, set[tuple[str, str]]] = {}
        for job_uid, kind, state in found:
            self._found.setdefault(job_uid, set()).add((kind, state))

    def states(self, job_uid: str) -> set[str]:
        """Of all its works that wait."""
        return {state for _, state in self._found.get(job_uid, ())}

    def kinds(self, job_uid: str, state: WorkState) -> set[str]:
        """Of those in one state."""
        return {kind for kind, found in self._found.get(job_uid, ()) if found == state}


def waiting(session: Session, job_uids: Sequence[str]) -> Waiting:
    """What waits, of several jobs in one look."""
    query = (
        select(WorkRow.job_uid, WorkRow.kind, WorkRow.state)
        .where(WorkRow.job_uid.in_(job_uids), WorkRow.state.in_([WorkState.READY.value, WorkState.PROPOSING.value]))
        .distinct()
    )
    return Waiting((job_uid, kind, state) for job_uid, kind, state in session.execute(query))


def ready(session: Session, job_uid: str) -> WorkRow | None:
    """The oldest work of a job that a pod can take up, evaluations aside: these go first, see `objective`."""
    query = select(WorkRow).where(
        WorkRow.job_uid == job_uid, WorkRow.state == WorkState.READY, WorkRow.kind != WorkKind.EVALUATE
    )
    return session.scalar(query.order_by(WorkRow.create_time, WorkRow.id).limit(1))


def proposing(session: Session, job_uid: str) -> WorkRow | None:
    """The oldest TRAIN work of a job whose proposal has not been stored: of now, or from before a crash."""
    query = select(WorkRow).where(
        WorkRow.job_uid == job_uid, WorkRow.state == WorkState.PROPOSING, WorkRow.kind == WorkKind.TRAIN
    )
    return session.scalar(query.order_by(WorkRow.create_time, WorkRow.id).limit(1))
