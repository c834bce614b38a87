"""When a process ends: with its parent, or on a signal."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from podracer_core.errors import InvalidInput

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "PODRACER_PARENT_PID"
"""Set by a launcher to its own pid: the child must not outlive it."""

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def exit_with_parent(expected_parent_pid: int) -> None:
    """Make sure that this process ends when its parent does, however the parent ends.

    On Linux the kernel sends SIGKILL (`prctl(PR_SET_PDEATHSIG)`), at the end of the parent's *thread* that started
    this process: a launcher starts its children from a thread that lives as long as itself. Elsewhere a thread
    looks at the parent's pid twice a second. Exits at once when the parent is not `expected_parent_pid` any more.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(expected_parent_pid,), name="parent-watch", daemon=True).start()
    if os.getppid() != expected_parent_pid:  # it died before the kernel had our wish
        logger.error("the parent process %d has gone: exiting", expected_parent_pid)
        os._exit(1)


def exit_with_parent_if_asked() -> None:
    """`exit_with_parent` with the pid in PODRACER_PARENT_PID; nothing when that is unset.

    The variable is removed, so that this process's own children do not take it for theirs.
    Raises InvalidInput when it is not a pid.
    """
    text = os.environ.pop(PARENT_VARIABLE, "")
    if not text:
        return
    if not text.isdecimal():
        raise InvalidInput(f"{PARENT_VARIABLE} is {text!r}, expected a process id")
    exit_with_parent(int(text))


def stop_event_on_signals() -> threading.Event:
    """An event that SIGTERM or SIGINT sets; the same signal a second time ends the process at once.

    Only from the main thread.
    """
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What `work` returns; None, and it is cancelled, where `stop` comes first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait((working,))
    return None


def _watch(expected_parent_pid: int) -> None:
    while os.getppid() == expected_parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)
