"""Long tasks beside the main thread, which keeps watching its lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

Result = TypeVar("Result")

_POLL_S = 0.1


class BackgroundTask(Generic[Result]):
    """A task in its own daemon thread, which ends with the process."""

    def __init__(self, task: Callable[[], Result], name: str) -> None:
        self._task = task
        self._outcome: Future[Result] = Future()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it is over, with a result or an error."""
        return self._outcome.done()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is over, for at most `timeout_s`."""
        try:
            self._outcome.exception(timeout_s)
        except FutureTimeoutError:
            return

    def result(self, check: Callable[[], None] = lambda: None) -> Result:
        """The result of the function; raises its error. `check` is called while waiting."""
        while not self.done:
            check()
            self.wait(_POLL_S)
        return self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._task())
        except BaseException as error:  # noqa: BLE001 - the caller of `result` gets it, a SystemExit too
            self._outcome.set_exception(error)


def pause(seconds: float, check: Callable[[], None]) -> None:
    """Sleep, calling `check`, which raises to cancel."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left_s, _POLL_S))
