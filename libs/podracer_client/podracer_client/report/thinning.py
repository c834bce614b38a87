"""At most so many items of a stream whose length nobody knows, evenly chosen, in order."""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Thinning(Generic[Item]):
    """Keeps every n-th item; n doubles whenever `limit` is passed: of a long stream limit/2 to `limit` items."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stride = 1
        self.count = 0
        self.kept: list[Item] = []

    def add(self, item: Item) -> None:
        if self.count % self._stride == 0:
            self.kept.append(item)
            if len(self.kept) > self._limit:
                del self.kept[1::2]
                self._stride *= 2
        self.count += 1
