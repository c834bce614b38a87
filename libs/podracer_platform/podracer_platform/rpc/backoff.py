"""Exponential back-off with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


class Backoff(Iterator[float]):
    """Seconds to wait before each next attempt: `ceiling * (1 - jitter + jitter * u)`, u uniform in
    [0, 1).

    The ceiling starts at `initial_s` and doubles up to `maximum_s`. With `jitter` 1 ("full jitter")
    many clients that failed together do not come back together. The iterator ends after `attempts`
    values (never when None)."""

    def __init__(
        self,
        initial_s: float,
        maximum_s: float,
        jitter: float = 1.0,
        *,
        attempts: int | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        if not 0.0 < initial_s <= maximum_s or not 0.0 <= jitter <= 1.0:
            raise ValueError(
                f"expected 0 < initial_s <= maximum_s, 0 <= jitter <= 1: {initial_s=} {maximum_s=} "
                f"{jitter=}"
            )
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._jitter = jitter
        self._attempts = attempts
        self._uniform = uniform
        self.reset()

    def reset(self) -> None:
        """Start again from `initial_s`, after a success."""
        self._ceiling_s = self._initial_s
        self._left = self._attempts

    def __next__(self) -> float:
        if self._left is not None:
            if self._left <= 0:
                raise StopIteration
            self._left -= 1
        ceiling_s = self._ceiling_s
        self._ceiling_s = min(2.0 * ceiling_s, self._maximum_s)
        return ceiling_s * (1.0 - self._jitter + self._jitter * self._uniform())
