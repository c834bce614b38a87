"""The parts of a lease in memory only: its deadline, and its pod's reports beyond commits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from podracer_core.errors import Fenced
from podracer_orchestrator.transactions import Clock


@dataclass(slots=True)
class LiveReport:
    """A pod's last renewal: totals of its lease, for display only."""

    member_env_steps: Mapping[str, int] = field(default_factory=dict)
    env_steps_per_second: float = 0.0
    time: datetime | None = None


@dataclass(slots=True)
class _Term:
    job_uid: str
    deadline: float
    live: LiveReport = field(default_factory=LiveReport)


class LeaseDeadlines:
    """The deadlines of the held leases, by fence.

    A lease without a deadline here is refused. Only `begin` adds one, so an ended lease is never
    renewed. Thread-safe: each call is atomic, or reads a copy."""

    def __init__(self, clock: Clock, term_s: float) -> None:
        self.term_s = term_s
        self._clock = clock
        self._terms: dict[int, _Term] = {}
        self._reports: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._counting = threading.Lock()

    def begin(self, fence: int, job_uid: str) -> None:
        """Give a new lease, or one found after a restart, a full term."""
        self.end(fence)
        with self._counting:
            self._held[job_uid] += 1
            self._terms[fence] = _Term(job_uid, self._clock.monotonic() + self.term_s)

    def is_running(self, fence: int) -> bool:
        """Whether the lease's deadline is still to come."""
        return self._running(fence) is not None

    def job_of(self, fence: int) -> str:
        """The job that a lease belongs to. Raises Fenced if it has ended."""
        return self._get(fence).job_uid

    def reports(self, job_uid: str) -> int:
        """The number of reports of pods about leases of a job."""
        return self._reports[job_uid]

    def check(self, fence: int) -> None:
        """Raise Fenced unless the lease still runs."""
        self._get(fence)

    def renew(self, fence: int, live: LiveReport | None = None) -> None:
        """Give the lease another full term. Raises Fenced if it has ended."""
        term = self._get(fence)
        term.deadline = self._clock.monotonic() + self.term_s
        if live is not None:
            term.live = live
            self._reports[term.job_uid] += 1

    def end(self, fence: int) -> None:
        """Forget a lease."""
        with self._counting:
            term = self._terms.pop(fence, None)
            if term is None:
                return
            self._held[term.job_uid] -= 1
            if not self._held[term.job_uid]:
                del self._held[term.job_uid]
                self._reports.pop(term.job_uid, None)

    def expired(self) -> list[int]:
        """The fences of the leases whose deadline has passed, oldest first."""
        now = self._clock.monotonic()
        return sorted(fence for fence, term in list(self._terms.items()) if now >= term.deadline)

    def next_deadline(self) -> float | None:
        """The time when the next lease expires unless it is renewed; None without a held lease."""
        return min((term.deadline for term in list(self._terms.values())), default=None)

    def live(self, fence: int) -> LiveReport:
        """The last report of the lease's pod."""
        term = self._terms.get(fence)
        return term.live if term is not None else LiveReport()

    def env_steps_per_second(self, fences: Iterable[int]) -> float:
        """Environment steps per second of these leases together, as last reported."""
        return sum(self.live(fence).env_steps_per_second for fence in fences)

    def _running(self, fence: int) -> _Term | None:
        term = self._terms.get(fence)
        return term if term is not None and self._clock.monotonic() < term.deadline else None

    def _get(self, fence: int) -> _Term:
        term = self._running(fence)
        if term is None:
            raise Fenced(f"the lease with fence {fence} has ended", fence=fence)
        return term
