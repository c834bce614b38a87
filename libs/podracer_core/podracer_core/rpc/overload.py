"""What a server answers when it has too much to do: come again later, and when."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from podracer_core.errors import Exhausted
from podracer_core.rpc import limits


class CallLimit:
    """How many calls a server has in progress at once; a stream counts as long as it is open."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._in_progress = 0
        self._lock = threading.Lock()

    @contextmanager
    def one_call(self) -> Iterator[None]:
        """Raises Exhausted where there are too many, with the seconds after which to come again (callers differ)."""
        with self._lock:
            if self._in_progress >= self._calls:
                raise Exhausted(
                    f"{self._calls} calls are in progress, more than this server takes at once",
                    reason="OVERLOADED",
                    retry_after_s=round(random.uniform(*limits.OVERLOADED_RETRY_S), 3),  # noqa: S311 - no secret
                )
            self._in_progress += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_progress -= 1
