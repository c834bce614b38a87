"""Ctrl-C, SIGTERM and SIGHUP while managed processes run: once to stop gracefully, twice to stop
now."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any, Self

from podracer_client.processes.process import ProcessNews
from podracer_core.errors import PodracerError, Unavailable

INTERRUPTED = 130
"""Exit code after an interrupt."""

Inbox = SimpleQueue[ProcessNews | PodracerError | str | None]
"""News for which the main thread waits; None is an interrupt."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While open, the first signal calls `on_first`, any further one `on_second`; both on the main
    thread.

    Nothing is raised into the code that is running: `on_first` leaves a message that it looks for.
    """

    def __init__(self, on_first: Callable[[], None], on_second: Callable[[], None]) -> None:
        self._on_first = on_first
        self._on_second = on_second
        self._former: dict[signal.Signals, Any] = {}
        self.received = False

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            self._on_second()
        else:
            self.received = True
            self._on_first()


def serve_until_interrupted(inbox: Inbox, wait_ready: Callable[[], str]) -> int:
    """Print the result of `wait_ready`, called in a thread, to stdout, and news of processes to
    stderr; returns the exit code after an interrupt.

    Raises the errors of `wait_ready`, and Unavailable if a process dies repeatedly.
    """

    def announce() -> None:
        try:
            inbox.put(wait_ready())
        except PodracerError as error:
            inbox.put(error)

    threading.Thread(target=announce, name="ready", daemon=True).start()
    while (message := inbox.get()) is not None:
        match message:
            case str():
                sys.stdout.write(message)
                sys.stdout.flush()
            case ProcessNews(fatal=True):
                raise Unavailable(message.message, reason="PROCESS_FAILED")
            case ProcessNews():
                sys.stderr.write(f"{message.message}\n")
            case PodracerError():
                raise message
    return INTERRUPTED
