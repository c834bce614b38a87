"""WatchJob and WatchJobs: snapshots and events of a job, or of all jobs of a project, without a
gap."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.errors import NotFound
from podracer_orchestrator import outbox
from podracer_orchestrator.api.messages import event_message, job_message, pod_messages
from podracer_orchestrator.jobs import FINAL_STATES, jobs
from podracer_orchestrator.leases import LeaseDeadlines
from podracer_orchestrator.pool import pods
from podracer_orchestrator.transactions import (
    ChangeFeed,
    Clock,
    Transactions,
    job_topic,
    project_topic,
)
from podracer_platform.rpc import page

_FINAL = frozenset(job_pb2.JobState.Value(f"JOB_STATE_{state}") for state in FINAL_STATES)
EVENTS_AT_ONCE = 200
HEARTBEAT_S = 5.0
"""The longest time between two messages to a watcher, also of an idle job."""
FRESH_S = 1.0
"""How long a snapshot is reused if only the time has changed."""
REPORTS_S = 0.25
"""How often a watcher checks for a pod's report."""
DRAINING = "draining"
"""A topic that only `drain` touches."""
PROJECT_PAUSE_S = 0.25
"""Time between two looks at all jobs of a project."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 2.0
MOST_PODS_PAUSE_S = 10.0
MOST_LOAD = 0.1
"""The most of one core that all snapshots may use, and as much again for the pods in them, which
may be hundreds. Beyond it they become rarer."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """The time of a reading of a job, and the numbers of its changes and its pods' reports
    before."""

    version: int
    reports: int
    time: float


@dataclass(frozen=True, slots=True)
class _Pods:
    """A job's pods, when they were read, and what that cost."""

    found: Sequence[job_pb2.Pod] = ()
    time: float = float("-inf")
    cost_s: float = 0.0


@dataclass(slots=True)
class _Snapshot:
    """A snapshot of a job, and the responses for watchers, by the event position that they have."""

    moment: _Moment
    cost_s: float
    job: job_pb2.Job
    pods: _Pods
    responses: dict[int, service_pb2.WatchJobResponse] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.job.state in _FINAL


class Watcher:
    """Streams of job updates. A job is read once for all of its watchers."""

    def __init__(
        self,
        transactions: Transactions,
        changes: ChangeFeed,
        deadlines: LeaseDeadlines,
        clock: Clock,
        uses: Callable[[], Mapping[str, job_pb2.Resources]],
    ) -> None:
        """`uses`: the resources that each pod's processes use now, by its name."""
        self._transactions = transactions
        self._changes = changes
        self._deadlines = deadlines
        self._clock = clock
        self._uses = uses
        self._draining = False
        self._watched: Counter[str] = Counter()
        self._snapshots: dict[str, _Snapshot] = {}
        self._reading: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cost_s = 0.0  # of a snapshot, about

    async def watch(
        self, job_uid: str, after_position: int, min_interval_s: float
    ) -> AsyncIterator[service_pb2.WatchJobResponse]:
        """Updates of a job until it has ended and every event was sent, or until this server
        drains.

        Events come at once, unless snapshots have to become rarer. Snapshots without an event come
        at most every `min_interval_s`. Raises NotFound if the job is deleted meanwhile."""
        with self._keeping(job_uid):
            async for message in self._watch(job_uid, after_position, min_interval_s):
                yield message

    async def watch_project(
        self, project: str, after_positions: Mapping[str, int]
    ) -> AsyncIterator[service_pb2.WatchJobsResponse]:
        """Updates of a project's jobs with new events, from these positions (by uid) on, until this
        server drains.

        Without positions every job comes first as it is now, without its former events.
        """
        positions, is_new_here = dict(after_positions), not after_positions
        while not self._draining:
            version = self._changes.version(project_topic(project))
            newest = await self._transactions.read(
                lambda session: jobs.event_positions(session, project)
            )
            for uid in positions.keys() - newest.keys():
                del positions[uid]
                yield service_pb2.WatchJobsResponse(deleted=uid)
            for uid, position in newest.items():
                is_known = uid in positions
                after = positions.setdefault(uid, position if is_new_here else 0)
                if is_known and after >= position:
                    continue
                with self._keeping(uid), suppress(NotFound):  # it is deleted meanwhile
                    found = await self._response(await self._look(uid), after)
                    positions[uid] = max([after, *(event.position for event in found.events)])
                    # else a snapshot that was read just before is not new enough
                    if found.events or not is_known:
                        yield service_pb2.WatchJobsResponse(job=found.job, events=found.events)
            is_new_here = False
            await self._changes.wait(DRAINING, self._changes.version(DRAINING), PROJECT_PAUSE_S)
            if all(positions[uid] >= position for uid, position in newest.items()):
                await self._changes.wait(project_topic(project), version, HEARTBEAT_S)
        yield service_pb2.WatchJobsResponse(draining=True)

    def drain(self) -> None:
        """End every stream, after a last message that says so."""
        self._draining = True
        self._changes.notify_all()

    async def _watch(
        self, job_uid: str, position: int, min_interval_s: float
    ) -> AsyncIterator[service_pb2.WatchJobResponse]:
        sent_at = float("-inf")
        while True:
            snapshot = await self._look(job_uid)
            is_due = self._clock.monotonic() >= sent_at + min_interval_s
            has_events = snapshot.job.event_position > position
            has_more = False
            if has_events or snapshot.has_ended or self._draining or is_due:
                message = await self._response(snapshot, position)
                position = max([position, *(event.position for event in message.events)])
                has_more = position < snapshot.job.event_position
                has_ended = snapshot.has_ended and not has_more
                if self._draining and not has_ended and not has_more:
                    message = service_pb2.WatchJobResponse(
                        job=message.job, events=message.events, pods=message.pods, draining=True
                    )
                sent_at = self._clock.monotonic()
                yield message
                if has_ended or (self._draining and not has_more):
                    return
            if not has_more:
                await asyncio.sleep(self._pause_s)
                await self._await_news(snapshot, sent_at + min_interval_s, sent_at + HEARTBEAT_S)

    @contextmanager
    def _keeping(self, job_uid: str) -> Iterator[None]:
        """Keep a job's snapshots meanwhile, for all watchers of it at that time."""
        self._watched[job_uid] += 1
        try:
            yield
        finally:
            self._watched[job_uid] -= 1
            if not self._watched[job_uid]:
                for known in (self._watched, self._snapshots, self._reading):
                    known.pop(job_uid, None)

    @property
    def _pause_s(self) -> float:
        """How long a watcher waits between two readings."""
        return min(MOST_PAUSE_S, max(LEAST_PAUSE_S, self._cost_s * len(self._watched) / MOST_LOAD))

    async def _look(self, job_uid: str) -> _Snapshot:
        """The job as it is now, or as another watcher has just read it."""
        async with self._reading[job_uid]:
            version, known = self._changes.version(job_topic(job_uid)), self._snapshots.get(job_uid)
            began = self._clock.monotonic()
            reports = self._deadlines.reports(job_uid)
            if known is not None:
                is_same = (known.moment.version, known.moment.reports) == (version, reports)
                if began - known.moment.time < (FRESH_S if is_same else self._pause_s):
                    return known
            moment = _Moment(version, reports, began)
            known_pods = _Pods() if known is None else known.pods
            found = await self._transactions.read(
                lambda session: self._read(session, job_uid, moment, known_pods)
            )
            self._cost_s += 0.1 * (found.cost_s - self._cost_s)
            self._snapshots[job_uid] = found
            return found

    async def _response(self, snapshot: _Snapshot, after: int) -> service_pb2.WatchJobResponse:
        """The snapshot with the events after position `after`. Shared: never change it."""
        response = snapshot.responses.get(after)
        if response is None:
            found: Sequence[job_pb2.Event] = ()
            if snapshot.job.event_position > after:
                found = await self._transactions.read(
                    lambda session: _events(session, snapshot, after)
                )
            response = service_pb2.WatchJobResponse(
                job=snapshot.job, events=found, pods=snapshot.pods.found
            )
            snapshot.responses[after] = response
        return response

    async def _await_news(self, snapshot: _Snapshot, due_at: float, until: float) -> None:
        """Wait until the job has changed, or is due and one of its pods has reported, but not
        longer than `until`."""
        topic, uid = job_topic(snapshot.job.uid), snapshot.job.uid
        while (left_s := until - self._clock.monotonic()) > 0.0:
            if await self._changes.wait(
                topic, snapshot.moment.version, min(left_s, max(REPORTS_S, self._pause_s))
            ):
                return
            if (
                self._clock.monotonic() >= due_at
                and self._deadlines.reports(uid) != snapshot.moment.reports
            ):
                return

    def _read(
        self, session: Session, job_uid: str, moment: _Moment, pods_before: _Pods
    ) -> _Snapshot:
        began = time.thread_time()
        job = jobs.get_by_uid(session, job_uid)
        message = job_message(session, job, self._deadlines, self._clock.now())
        cost_s = time.thread_time() - began
        pause_s = min(MOST_PODS_PAUSE_S, pods_before.cost_s * len(self._watched) / MOST_LOAD)
        if moment.time < pods_before.time + pause_s:
            return _Snapshot(moment, cost_s, message, pods_before)
        messages = pod_messages(session, pods.of_job(session, job), self._deadlines, self._uses())
        read = _Pods(messages, moment.time, time.thread_time() - began - cost_s)
        return _Snapshot(moment, cost_s, message, read)


def _events(session: Session, snapshot: _Snapshot, after: int) -> list[job_pb2.Event]:
    """The events up to the snapshot."""
    found = outbox.after(session, snapshot.job.uid, after, EVENTS_AT_ONCE)
    shown = (event for event in found if event.position <= snapshot.job.event_position)
    return page(shown, EVENTS_AT_ONCE, event_message, lambda event: str(event.position))[0]
