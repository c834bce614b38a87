"""What the cluster's controllers complain of where the objects themselves say nothing.

A Job that gets no pod (a quota, a policy), a pod whose volumes cannot be mounted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from podracer_core.errors import PermissionRefused
from podracer_core.kubernetes.api import Item
from podracer_orchestrator.pool.backend import Trouble
from podracer_orchestrator.pool.kubernetes import status, troubles

__all__ = ["ClusterWarnings"]

SLOW_S = 10.0
"""A pod that has not started after so long is asked about,"""
AGAIN_S = 30.0
"""and so often,"""
MOST = 4
"""and so many at a time: others wait for the same, most likely."""

InThread = Callable[[Callable[[], Sequence[str]]], Awaitable[Sequence[str]]]


class ClusterWarnings:
    """Asks for the events of what is slow to start."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # of a Job, by uid: when it was first seen not to run
        self._asked: dict[str, float] = {}
        self._found: dict[str, Trouble] = {}

    async def of(
        self,
        jobs: Mapping[str, Item],
        pods: Mapping[str, Sequence[Item]],
        in_thread: InThread,
        ask: Callable[[str], Sequence[str]],
        now: float,
    ) -> Mapping[str, Trouble]:
        """The troubles of those of `jobs` that should run and do not, by name."""
        slow = {status.uid_of(job): job for name, job in jobs.items() if _should_run(job, pods.get(name, ()))}
        self._since = {uid: self._since.get(uid, now) for uid in slow}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in slow}
        self._found = {uid: trouble for uid, trouble in self._found.items() if uid in slow}
        due = [
            uid
            for uid in slow
            if now - self._since[uid] >= SLOW_S and now - self._asked.get(uid, now - AGAIN_S) >= AGAIN_S
        ]
        for uid in due[:MOST]:
            self._asked[uid] = now
            pod = status.newest(pods.get(status.name_of(slow[uid]), ()))
            try:
                messages = await in_thread(partial(ask, status.name_of(pod or slow[uid])))
            except PermissionRefused:
                continue  # it is only for better words
            if messages:
                self._found[uid] = troubles.of_warning(messages[-1])
            else:
                self._found.pop(uid, None)
        return {status.name_of(slow[uid]): trouble for uid, trouble in self._found.items()}


def _should_run(job: Item, pods: Sequence[Item]) -> bool:
    if status.is_suspended(job) or status.is_deleting(job) or status.outcome(job):
        return False
    pod = status.newest(pods)
    return pod is None or status.phase(pod) == "Pending"
