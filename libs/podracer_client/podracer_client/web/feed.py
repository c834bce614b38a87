"""The data of a page: values by key, and growing logs. Each reader gets the changes since its last
frame."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

FRAME_S = 0.05
"""Changes within this time are sent in one frame."""
HEARTBEAT_S = 10.0
ROWS_AT_ONCE = 5_000
"""The most rows of a log in one frame: a long history is sent in pieces."""

Frame = dict[str, Any]


@dataclass(slots=True)
class _Log:
    """The newest `limit` rows; `first` is the number of the oldest of them."""

    limit: int
    first: int = 0
    rows: list[Any] = field(default_factory=list)

    def append(self, rows: Iterable[Any]) -> None:
        self.rows.extend(rows)
        if len(self.rows) > self.limit:
            # a tenth at once: each cut moves all the rest
            surplus = len(self.rows) - self.limit + self.limit // 10
            del self.rows[:surplus]
            self.first += surplus


class Feed:
    """Written from threads, read by any number of clients on one event loop.

    Clients have no queues. Each one stores the revision that it has; the next frame of a slow
    client has the newest values, and none of those in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, logs: Mapping[str, int]) -> None:
        """`logs`: the names of the logs, and the number of rows that each keeps."""
        self._loop = loop
        self._lock = threading.Lock()
        self._revision = 0
        self._values: dict[str, tuple[int, Any]] = {}
        self._logs = {name: _Log(limit) for name, limit in logs.items()}
        self._news = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        self._ring()

    def put(self, **values: Any) -> None:
        """Set values; unchanged ones cost nothing. None removes a value."""
        with self._lock:
            changed = {
                key: value
                for key, value in values.items()
                if self._values.get(key, (0, None))[1] != value
            }
            if not changed:
                return
            self._revision += 1
            self._values |= {key: (self._revision, value) for key, value in changed.items()}
        self._ring()

    def append(self, log: str, rows: Iterable[Any]) -> None:
        with self._lock:
            self._logs[log].append(rows)
        self._ring()

    async def frames(self) -> AsyncIterator[Frame | None]:
        """Yields all data first, then the changes; None after a while without changes."""
        revision, places = 0, dict.fromkeys(self._logs, 0)
        while not self._closed:
            news = self._news
            frame, revision, has_more = self._cut(revision, places)
            if frame["values"] or frame["logs"]:
                yield frame
            if has_more:
                continue
            try:
                await asyncio.wait_for(news.wait(), HEARTBEAT_S)
                await asyncio.sleep(FRAME_S)
            except TimeoutError:
                yield None

    def _cut(self, revision: int, places: dict[str, int]) -> tuple[Frame, int, bool]:
        """The data newer than `revision` and `places`, which advance to its end."""
        with self._lock:
            values = {
                key: value for key, (changed, value) in self._values.items() if changed > revision
            }
            logs, has_more = {}, False
            for name, log in self._logs.items():
                start = max(0, places[name] - log.first)
                rows = log.rows[start : start + ROWS_AT_ONCE]
                places[name] = log.first + start + len(rows)
                has_more |= start + len(rows) < len(log.rows)
                if rows:
                    logs[name] = rows
            return {"values": values, "logs": logs}, self._revision, has_more

    def _ring(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
