"""The time of a round: processor seconds, seconds by phase, and a few iterations as spans of every
phase.

Processor seconds of a process include all its children. On a CPU, budgets and the share of
evaluation count them."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

_FIRST = 3
_PAUSE_S = 5.0

SAMPLED = "sampled"
"""The attribute of a span that represents others of its name; their total time is the `TOTAL` of
its parent."""
TOTAL = "seconds."
"""The prefix of attributes with the total time of a span's children, by their name."""


def processor_seconds() -> float:
    """Processor time of this process so far, with all threads, ended children, and (on Linux)
    living children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_seconds_of, _children()))
    )


def _children() -> list[int]:
    """The living children; the kernel lists them by the thread that started them."""
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            found += map(int, listed.read_text().split())
    return found


def _seconds_of(pid: int) -> float:
    with suppress(OSError):  # it has just ended
        # the kernel's number for the processor clock of a process
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


class Occasions:
    """Selects the first three iterations, and then one after 5 s, 10 s, 20 s and so on: a long
    round has few more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = 0
        self._next_at = 0.0
        self._pause_s = _PAUSE_S

    def is_next(self) -> bool:
        """Whether this iteration is selected."""
        now = self._clock()
        if self._taken >= _FIRST:
            if now < self._next_at:
                return False
            self._pause_s *= 2
        self._taken += 1
        self._next_at = now + self._pause_s
        return True


class Phases:
    """The phases of one round, by this process's clock: GPU work launched in one phase may end in
    another.

    The times of all iterations add up; selected ones (`Occasions`) are also recorded as spans.
    """

    def __init__(
        self,
        span: Callable[..., AbstractContextManager[object]] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`span`: begins a span with a name and attributes; None: no spans are recorded."""
        self._span, self._clock = span, clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._occasions = Occasions()
        self._iteration, self._is_sampled = 0, False

    def next_iteration(self) -> None:
        """Begin another iteration."""
        self._iteration += 1
        self._is_sampled = self._span is not None and self._occasions.is_next()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context manager around a phase."""
        own = self._begin(name, sampled=True, iteration=self._iteration)
        began_at = self._clock()
        try:
            with own:
                yield
        finally:
            self._seconds[name] += self._clock() - began_at

    def part(self, name: str) -> AbstractContextManager[object]:
        """A part of a phase: only a span, where its phase is one."""
        return self._begin(name)

    def _begin(self, name: str, **attributes: object) -> AbstractContextManager[object]:
        if self._span is None or not self._is_sampled:
            return nullcontext()
        return self._span(name, **attributes)

    @property
    def seconds(self) -> Mapping[str, float]:
        """The seconds of each phase so far."""
        return dict(self._seconds)

    @property
    def attributes(self) -> Mapping[str, float | int]:
        """The attributes for the span of the round."""
        totals = {f"{TOTAL}{name}": round(seconds, 6) for name, seconds in self._seconds.items()}
        return totals | {"iterations": self._iteration}
