"""Processor seconds of a process with all its children: what budgets and evaluation's share count on a CPU."""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from pathlib import Path


def processor_seconds() -> float:
    """Processor time of this process so far, of all its threads, of its children that live (on Linux), and of those
    that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_seconds_of, _children()))


def _children() -> list[int]:
    """The kernel lists them by the thread that has started them."""
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            found += map(int, listed.read_text().split())
    return found


def _seconds_of(pid: int) -> float:
    with suppress(OSError):  # it has just ended
        return time.clock_gettime(~pid << 3 | 2)  # the kernel's number for the processor clock of a process
    return 0.0
