"""WatchJob: a job's snapshots and events, without a gap."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_orchestrator import events, jobs, pods
from podracer_orchestrator.changes import ChangeFeed, job_topic
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.job_messages import event_message, job_message
from podracer_orchestrator.job_state import FINAL_STATES, JobState
from podracer_orchestrator.lease_messages import pod_message
from podracer_orchestrator.terms import LeaseTerms
from podracer_orchestrator.transactions import Transactions

EVENTS_AT_ONCE = 200
HEARTBEAT_S = 5.0
"""A watcher hears at least this often, also of a job in which nothing happens."""


@dataclass(slots=True)
class _News:
    message: service_pb2.WatchJobResponse
    has_more: bool
    has_ended: bool


class Watcher:
    """Streams of job news."""

    def __init__(
        self,
        transactions: Transactions,
        changes: ChangeFeed,
        terms: LeaseTerms,
        clock: Clock,
        uses: Callable[[], Mapping[str, job_pb2.Resources]],
    ) -> None:
        """`uses`: what each pod's processes take now, by its name."""
        self._transactions = transactions
        self._changes = changes
        self._terms = terms
        self._clock = clock
        self._uses = uses
        self._draining = False

    async def watch(
        self, job_uid: str, after_position: int, min_interval_s: float
    ) -> AsyncIterator[service_pb2.WatchJobResponse]:
        """News of a job until it has ended and every event was sent, or until this server drains.

        Events come at once; snapshots without an event at most every `min_interval_s`. Raises NotFound where the job
        is deleted meanwhile.
        """
        topic, position, sent_at = job_topic(job_uid), after_position, float("-inf")
        while True:
            version = self._changes.version(topic)
            news = await self._transactions.read(functools.partial(self._read, job_uid=job_uid, after=position))
            is_due = self._clock.monotonic() >= sent_at + min_interval_s
            if news.message.events or news.has_ended or self._draining or is_due:
                position = max([position, *(event.position for event in news.message.events)])
                news.message.draining = self._draining and not news.has_ended and not news.has_more
                sent_at = self._clock.monotonic()
                yield news.message
                wait_s = HEARTBEAT_S
            else:
                wait_s = sent_at + min_interval_s - self._clock.monotonic()
            if news.has_ended or (self._draining and not news.has_more):
                return
            if not news.has_more:
                await self._changes.wait(topic, version, wait_s)

    def drain(self) -> None:
        """End every stream, after a last message that says so."""
        self._draining = True
        self._changes.notify_all()

    def _read(self, session: Session, job_uid: str, after: int) -> _News:
        job = jobs.get_by_uid(session, job_uid)
        found = events.after(session, job_uid, after, EVENTS_AT_ONCE)
        uses = self._uses()
        message = service_pb2.WatchJobResponse(
            job=job_message(session, job, self._terms, self._clock.now()),
            events=[event_message(event) for event in found],
            pods=[pod_message(session, pod, self._terms, uses.get(pod.name)) for pod in pods.of_job(session, job)],
        )
        has_more = len(found) == EVENTS_AT_ONCE
        return _News(message, has_more, not has_more and JobState(job.state) in FINAL_STATES)
