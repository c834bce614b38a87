"""WatchJobs: the snapshots and events of all jobs of a project, without a gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import NotFound
from podracer_orchestrator.changes import ChangeFeed, project_topic
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.job_state import FINAL_STATES
from podracer_orchestrator.tables import JobRow
from podracer_orchestrator.transactions import Transactions
from podracer_orchestrator.watching import LEAST_PAUSE_S, MOST_LOAD, MOST_PAUSE_S, Moment, Watcher


@dataclass(slots=True)
class _Told:
    """What a stream has said of a job: up to which event, when, and of which reading."""

    position: int
    at: float
    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class _Standings:
    """Newest event of each job of a project, oldest job first; those that have ended; and what the reading cost."""

    positions: Mapping[str, int]
    ended: frozenset[str]
    cost_s: float


class ProjectWatcher:
    """Streams of the news of a project. A job is read by the Watcher, for all who look at it at that moment."""

    def __init__(self, transactions: Transactions, changes: ChangeFeed, clock: Clock, watcher: Watcher) -> None:
        self._transactions = transactions
        self._changes = changes
        self._clock = clock
        self._watcher = watcher

    async def watch(
        self, project: str, after_positions: Mapping[str, int], min_interval_s: float
    ) -> AsyncIterator[service_pb2.WatchJobsResponse]:
        """News of a project until this server drains, from these positions on, by the jobs' uids.

        Without positions every job comes as it is now, without its former events. A job comes at once with a new event,
        and otherwise at most every `min_interval_s`.
        """
        began = self._clock.monotonic()
        told = {uid: _Told(max(0, position), began) for uid, position in after_positions.items()}
        is_new_here = not told
        while not self._watcher.is_draining:
            version = self._changes.version(project_topic(project))
            standings = await self._transactions.read(lambda session: _read(session, project))
            for uid in told.keys() - standings.positions.keys():
                del told[uid]
                yield service_pb2.WatchJobsResponse(deleted=uid)
            for uid, position in standings.positions.items():
                if uid not in told:
                    told[uid] = _Told(position if is_new_here else 0, float("-inf"))
                elif told[uid].position >= position and not self._is_due(uid, told[uid], standings, min_interval_s):
                    continue
                if (message := await self._message(uid, told[uid])) is not None:
                    yield message
            is_new_here = False
            await asyncio.sleep(min(MOST_PAUSE_S, max(LEAST_PAUSE_S, standings.cost_s / MOST_LOAD)))
            if all(told[uid].position >= position for uid, position in standings.positions.items()):
                await self._changes.wait(project_topic(project), version, min_interval_s)
        yield service_pb2.WatchJobsResponse(draining=True)

    def _is_due(self, uid: str, told: _Told, standings: _Standings, min_interval_s: float) -> bool:
        if uid in standings.ended or self._clock.monotonic() < told.at + min_interval_s:
            return False
        return told.moment is None or self._watcher.has_changed(uid, told.moment)

    async def _message(self, uid: str, told: _Told) -> service_pb2.WatchJobsResponse | None:
        """None where the job is deleted meanwhile."""
        try:
            told.moment, found = await self._watcher.look(uid, told.position)
        except NotFound:
            return None
        told.at = self._clock.monotonic()
        told.position = max([told.position, *(event.position for event in found.events)])
        return service_pb2.WatchJobsResponse(job=found.job, events=found.events)


def _read(session: Session, project: str) -> _Standings:
    began = time.thread_time()
    query = select(JobRow.uid, JobRow.event_position, JobRow.state).where(JobRow.project == project)
    found = session.execute(query.order_by(JobRow.create_time, JobRow.uid)).all()
    positions = {uid: position for uid, position, _ in found}
    ended = frozenset(uid for uid, _, state in found if state in FINAL_STATES)
    return _Standings(positions, ended, time.thread_time() - began)
