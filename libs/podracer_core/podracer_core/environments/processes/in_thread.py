"""Environments that wait more than they compute, each in a thread of its own, so that the waits of
a step overlap."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import gymnasium


class InThread(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is made, reset, stepped and closed in one thread, which some libraries
    demand."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        """Begins to make the environment; `wait_until_made` comes next."""
        self._thread = ThreadPoolExecutor(1)
        self._made = self._thread.submit(make)
        self._result: Future[Any] | None = None

    def wait_until_made(self) -> Self:
        """Itself. Raises what the construction raised."""
        super().__init__(self._made.result())
        return self

    def begin(self, action: Any) -> Any:
        """Begin a step, whose result the next call of `step` returns."""
        self._result = self._thread.submit(self.env.step, action)
        return action

    def step(self, action: Any) -> Any:
        """The result of the step that has begun, or of this one."""
        result, self._result = self._result or self._thread.submit(self.env.step, action), None
        return result.result()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env.reset`."""
        return self._thread.submit(self.env.reset, seed=seed).result()

    def close(self) -> None:
        """Close the environment once it is made, and end the thread."""
        try:
            self._thread.submit(self._made.result().close).result()
        finally:
            self._thread.shutdown()
