"""Self-fencing: a learner writes nothing unless it is sure of its lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from podracer_core.errors import Fenced, Unavailable
from podracer_core.storage.object_store import CHUNK_BYTES, ObjectInfo, ObjectStore
from podracer_learner.background import pause
from podracer_platform.rpc.backoff import Backoff

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_AWAY_S = (0.2, 5.0)
_MARGIN_FRACTION = 0.1
_MARGIN_S = 1.0


class LeaseGuard:
    """Knows until when the lease is held: one term from when the last successful renewal was
    *sent*.

    It keeps a margin of a tenth of the term (1 s at most), as a write takes time. The clock is
    monotonic and also runs while the process is stopped. An expired lease is never revived by a
    later renewal. Thread-safe."""

    def __init__(self, lease: str, fence: int, clock: Callable[[], float] = time.monotonic) -> None:
        """The lease is not held before the first `extend`."""
        self.lease, self.fence, self._clock = lease, fence, clock
        self._lock = threading.Lock()
        self._deadline: float | None = None
        self._reason = "it has not been renewed yet"

    def now(self) -> float:
        """The clock's time, to hand to `extend`."""
        return self._clock()

    def extend(self, sent_at: float, term_s: float) -> None:
        """A renewal that was sent at `sent_at` has been granted. Raises Fenced if it came too
        late."""
        with self._lock:
            if self._deadline is not None:
                self._check()
            granted = sent_at + term_s - min(_MARGIN_S, _MARGIN_FRACTION * term_s)
            self._deadline = max(granted, self._deadline or granted)
            self._check()

    def revoke(self, reason: str) -> None:
        """The orchestrator has ended the lease."""
        with self._lock:
            self._deadline, self._reason = float("-inf"), reason

    def check(self) -> None:
        """Raises Fenced unless the lease is held now. Call it before every write."""
        with self._lock:
            self._check()

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease expires without a renewal; 0 if it is not held."""
        with self._lock:
            return 0.0 if self._deadline is None else max(self._deadline - self._clock(), 0.0)

    def _check(self) -> None:
        if self._deadline is not None and self._clock() < self._deadline:
            return
        if self._deadline is not None and self._deadline != float("-inf"):
            self._deadline, self._reason = float("-inf"), "its term ended without a renewal"
        raise Fenced(
            f"this pod does not hold {self.lease}: {self._reason}",
            lease=self.lease,
            fence=self.fence,
        )


class FencedStore(ObjectStore):
    """An object store that writes only while the lease is held, and waits for an unavailable store
    on reads."""

    def __init__(
        self, store: ObjectStore, guard: LeaseGuard, check: Callable[[], None], patience_s: float
    ) -> None:
        """Reads are retried for `patience_s`; `check` is called meanwhile and raises to cancel."""
        self._store, self._guard, self._check, self._patience_s = store, guard, check, patience_s
        self.url = store.url

    def put(self, key: str, data: bytes | Path) -> None:
        self._guard.check()
        self._store.put(key, data)

    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        def begin() -> tuple[Iterator[bytes], bytes | None]:
            chunks = self._store.read_chunks(key, chunk_bytes)
            return chunks, next(chunks, None)

        chunks, first = self._patiently(begin)
        if first is not None:
            yield first
        yield from chunks

    def stat(self, key: str) -> ObjectInfo:
        return self._patiently(lambda: self._store.stat(key))

    def _patiently(self, read: Callable[[], Answer]) -> Answer:
        waits, deadline = Backoff(*_AWAY_S), time.monotonic() + self._patience_s
        while True:
            try:
                return read()
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                logger.info("waiting for the object store: %s", error.message)
            pause(next(waits), self._check)
