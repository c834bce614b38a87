"""How long the end of a pod may take, on a clock that only waiting moves: Ctrl-C promises 5 s for
everything."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from podracer_orchestrator.pool import (
    DRAIN_GRACE_S,
    LEARNER,
    LEARNER_GRACE_S,
    STOP_GRACE_S,
    LocalPod,
)


class _NoWaiting(selectors.DefaultSelector):
    """Ready at once; what would have been waited is added to the loop's clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_s += timeout or 0.0
        return super().select(0)


def run_on_a_clock_of_its_own(main: Coroutine[Any, Any, None]) -> float:
    """The seconds that `main` has waited for."""
    selector = _NoWaiting()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
    return selector.now_s


class PlayedProcess:
    """Ends so long after it was told to, or when it is killed."""

    def __init__(self, ends_after_s: float, on_death: object, on_end: Callable[[], None]) -> None:
        self._ends_after_s = ends_after_s
        self._on_end = on_end
        self.killed = False

    def start(self) -> None:
        pass

    def terminate(self) -> None:
        asyncio.get_running_loop().call_later(self._ends_after_s, self._end)

    def kill(self) -> None:
        self.killed = True
        self._on_end()

    def _end(self) -> None:
        if not self.killed:
            self._on_end()


def end(hurried: bool, **ends_after_s: float) -> tuple[float, set[str]]:
    """Seconds until a pod has ended, and which processes had to be killed."""
    killed: set[str] = set()

    async def main() -> None:
        played: dict[str, PlayedProcess] = {}

        def play(role: str, *calls: Any) -> Any:
            return played.setdefault(role, PlayedProcess(ends_after_s[role], *calls))

        processes = {role: partial(play, role) for role in ends_after_s}
        pod = LocalPod("pod", processes, None)  # type: ignore[arg-type]
        pod.start()
        await asyncio.sleep(0)
        if hurried:
            pod.hurry()
        await pod.stop()
        killed.update(role for role, process in played.items() if process.killed)

    return run_on_a_clock_of_its_own(main()), killed


def test_a_pod_that_ends_by_itself_is_not_waited_for_longer():
    took_s, killed = end(True, learner=0.5, worker0=0.1, evaluator=0.2)
    assert took_s == pytest.approx(0.7)
    assert not killed


def test_a_stubborn_pod_is_gone_within_its_grace_and_its_learner_has_the_longest():
    took_s, killed = end(True, learner=1e6, worker0=1e6, evaluator=1e6)
    assert took_s == pytest.approx(STOP_GRACE_S)
    assert killed == {LEARNER, "worker0", "evaluator"}
    took_s, killed = end(True, learner=LEARNER_GRACE_S - 0.1, worker0=0.1)
    assert (took_s, killed) == (pytest.approx(LEARNER_GRACE_S), set())


def test_a_pod_that_the_pool_gives_up_may_finish_a_long_update():
    took_s, killed = end(False, learner=DRAIN_GRACE_S - 1.0, worker0=0.1)
    assert (took_s, killed) == (pytest.approx(DRAIN_GRACE_S - 0.9), set())
