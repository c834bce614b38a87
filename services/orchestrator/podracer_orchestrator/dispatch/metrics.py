"""Spans of granted leases, and the orchestrator's metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import PodracerError
from podracer_orchestrator.jobs.state import JobState
from podracer_orchestrator.tables import JobRow, LeaseRow, LeaseState, OutboxRow, PodRow, PodState
from podracer_orchestrator.transactions import Transactions
from podracer_platform.telemetry import metrics
from podracer_platform.telemetry.spans import span

logger = logging.getLogger(__name__)

_EVERY_S = 5.0
_PRESENT = [state for state in PodState if state not in (PodState.LOST, PodState.STOPPED)]


def granted(lease: pod_pb2.Lease, looked_at_ns: int) -> pod_pb2.Lease:
    """A lease that a pod gets, with the span of the granting, which has begun when it was looked
    for."""
    work = lease.WhichOneof("work") or ""
    if work != "exit":
        metrics.LEASES.add(event="granted")
    own = span(
        "grant",
        lease.traceparent,
        start_ns=looked_at_ns,
        job=lease.job,
        lease=lease.name,
        work=work,
    )
    lease.traceparent = own.traceparent
    own.end()
    return lease


class WaitingPods:
    """The number of pods that wait for work."""

    def __init__(self) -> None:
        self._count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self._count += 1
        metrics.LEASE_WAITS.set(self._count)
        try:
            yield
        finally:
            self._count -= 1
            metrics.LEASE_WAITS.set(self._count)


class Gauges:
    """The task that updates gauges from the database, if metrics are exported."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def run(self) -> None:
        """Update the gauges every few seconds, forever."""
        while True:
            if metrics.are_wanted():
                try:
                    await self._transactions.read(_set_gauges)
                except PodracerError as error:
                    logger.warning("cannot update the metrics, retrying: %s", error.message)
            await asyncio.sleep(_EVERY_S)


def _set_gauges(session: Session) -> None:
    jobs = _counts(session, JobRow.state)
    for state in JobState:
        metrics.JOBS.set(jobs.get(state, 0), state=state)
    pods = _counts(session, PodRow.state)
    for pod_state in _PRESENT:
        metrics.PODS.set(pods.get(pod_state, 0), state=pod_state)
    held = select(func.count()).select_from(LeaseRow).where(LeaseRow.state == LeaseState.HELD)
    metrics.LEASES_HELD.set(session.scalars(held).one())
    metrics.OUTBOX.set(session.scalars(select(func.count()).select_from(OutboxRow)).one())


def _counts(session: Session, column: InstrumentedAttribute[str]) -> Mapping[str, int]:
    """The number of rows by value."""
    return dict(session.execute(select(column, func.count()).group_by(column)).tuples().all())
