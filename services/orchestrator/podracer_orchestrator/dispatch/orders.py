"""Sends orders to lease holders as soon as they change: the next renewal may be most of a minute
away."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import PodracerError
from podracer_orchestrator.dispatch.renewals import FRESH_S, Action, LeaseActions
from podracer_orchestrator.leases import LeaseDeadlines
from podracer_orchestrator.transactions import ChangeFeed, job_topic

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two readings of an unchanged job: some orders depend on the time."""
WORD_S = 60.0
"""The longest time between two messages to a holder."""


class Orders:
    """Streams of orders. A job's actions are read once for all of its leases, once a second at
    most."""

    def __init__(
        self, actions: LeaseActions, deadlines: LeaseDeadlines, changes: ChangeFeed
    ) -> None:
        self._actions = actions
        self._deadlines = deadlines
        self._changes = changes
        self._listeners: Counter[str] = Counter()  # by job
        self._orders: dict[str, Mapping[int, Action]] = {}  # by job and fence, without CONTINUE
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._draining = False

    async def watch(self, fence: int) -> AsyncIterator[Action]:
        """Stream orders until the lease ends, or this server drains. Raises Fenced if it has ended
        before."""
        job_uid = self._deadlines.job_of(fence)
        with self._listening(job_uid):
            while self._deadlines.is_running(fence) and not self._draining:
                version = self._changes.version(_topic(job_uid))
                yield self._orders.get(job_uid, {}).get(fence, pod_pb2.LEASE_ACTION_CONTINUE)
                await self._changes.wait(_topic(job_uid), version, WORD_S)

    def drain(self) -> None:
        """End every stream."""
        self._draining = True
        self._changes.notify([_topic(job_uid) for job_uid in self._listeners])

    @contextmanager
    def _listening(self, job_uid: str) -> Iterator[None]:
        """Read the job while it has listeners."""
        self._listeners[job_uid] += 1
        if job_uid not in self._tasks:
            self._tasks[job_uid] = asyncio.create_task(self._look(job_uid))
        try:
            yield
        finally:
            self._listeners[job_uid] -= 1
            if not self._listeners[job_uid]:
                del self._listeners[job_uid]
                self._tasks.pop(job_uid).cancel()
                self._orders.pop(job_uid, None)

    async def _look(self, job_uid: str) -> None:
        while True:
            version = self._changes.version(job_topic(job_uid))
            try:
                found = await self._actions.of_job(job_uid)
            except PodracerError as error:
                logger.warning("cannot read the orders of a job, retrying: %s", error)
            else:
                orders = {
                    fence: each
                    for fence, each in found.items()
                    if each != pod_pb2.LEASE_ACTION_CONTINUE
                }
                if orders != self._orders.get(job_uid, {}):
                    self._orders[job_uid] = orders
                    self._changes.notify([_topic(job_uid)])
            await asyncio.sleep(FRESH_S)
            await self._changes.wait(job_topic(job_uid), version, LOOK_S)


def _topic(job_uid: str) -> str:
    return f"orders/{job_uid}"
