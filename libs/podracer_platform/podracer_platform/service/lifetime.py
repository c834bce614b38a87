"""The end of a process: with its parent, or on a signal."""

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
"""A launcher sets it to its own pid: the child process must not outlive it."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_POLL_S = 0.5
_ends_with_parent = False


def protect_memory() -> None:
    """Let no process of this user trace this one. If it ends with a parent, it stays open: that
    measures its memory."""
    if sys.platform == "linux" and not _ends_with_parent:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def exit_with_parent(expected_parent_pid: int) -> None:
    """End this process when its parent ends, even if the parent is killed.

    On Linux the kernel sends SIGKILL (`prctl(PR_SET_PDEATHSIG)`) at the end of the parent's
    *thread* that started this process: a launcher starts its children from a thread that lives as
    long as itself. On other systems a thread checks the parent's pid twice a second. Exits at once
    if the parent is no longer `expected_parent_pid`."""
    global _ends_with_parent  # noqa: PLW0603 - of this process
    _ends_with_parent = True
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(
            target=_watch, args=(expected_parent_pid,), name="parent-watch", daemon=True
        ).start()
    if os.getppid() != expected_parent_pid:  # it died before the kernel had our wish
        logger.error("the parent process %d has gone: exiting", expected_parent_pid)
        os._exit(1)


def exit_with_parent_if_asked() -> None:
    """Call `exit_with_parent` with the pid in PODRACER_PARENT_PID, if that is set.

    Removes the variable, so that the children of this process do not use it. Raises InvalidInput if
    it is not a pid."""
    text = os.environ.pop(PARENT_VARIABLE, "")
    if not text:
        return
    if not text.isdecimal():
        raise InvalidInput(f"{PARENT_VARIABLE} is {text!r}, expected a process id")
    exit_with_parent(int(text))


def stop_event_on_signals() -> threading.Event:
    """An event that SIGTERM or SIGINT sets. The same signal a second time ends the process at once.

    Call it from the main thread only.
    """
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`. If `stop` comes first, `work` is cancelled and the result is None."""
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
