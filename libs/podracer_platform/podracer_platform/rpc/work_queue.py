"""Tasks of rpc handlers for the main thread: torch computes in one thread, and gRPC serves beside
it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from podracer_core.errors import Unavailable

Result = TypeVar("Result")

_POLL_S = 0.1


class WorkQueue:
    """Tasks in the order in which they were submitted."""

    def __init__(self) -> None:
        # No SimpleQueue: a signal that comes at the end of its time-out makes it wait forever
        # (CPython 3.11).
        self._tasks: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._stopped = threading.Event()

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Let the main thread call `task`. The future raises the task's error; Unavailable after
        the end of `run`."""
        future: Future[Result] = Future()
        self._tasks.put((task, future))
        if self._stopped.is_set():
            self._refuse_rest()
        return future

    def run(self, stop: threading.Event) -> None:
        """Run tasks until `stop` is set; then finish the current one and refuse waiting ones."""
        while not stop.is_set():
            self._do_next(_POLL_S)
        self.stop()

    def run_pending(self) -> None:
        """Run the waiting tasks, for a main thread with its own loop."""
        while self._do_next(0.0):
            pass

    def stop(self) -> None:
        """Refuse waiting and further tasks."""
        self._stopped.set()
        self._refuse_rest()

    def _do_next(self, timeout_s: float) -> bool:
        try:
            task, future = (
                self._tasks.get(timeout=timeout_s) if timeout_s > 0 else self._tasks.get_nowait()
            )
        except queue.Empty:
            return False
        _do(task, future)
        return True

    def _refuse_rest(self) -> None:
        while True:
            try:
                _, future = self._tasks.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    Unavailable("this process is about to stop", reason="DRAINING")
                )


def _do(task: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = task()
    except Exception as error:  # noqa: BLE001 - the future carries it to the caller
        future.set_exception(error)
    else:
        future.set_result(result)
