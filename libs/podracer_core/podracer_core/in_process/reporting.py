"""Output during training: looks and a line of progress."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from podracer_core.in_process.order import Order


@dataclass(frozen=True, slots=True)
class Look:
    """A few greedy episodes of every member during training.

    seconds    since training began
    env_steps  of all members together
    returns    mean return of each member, [M]
    best       the highest of these so far
    """

    seconds: float
    env_steps: int
    returns: tuple[float, ...]
    best: float

    def to_json(self) -> dict[str, Any]:
        """The look in a checkpoint's metadata."""
        return {"seconds": self.seconds, "env_steps": self.env_steps, "returns": list(self.returns), "best": self.best}


class ProgressLine:
    """One line that is overwritten, for notebooks and terminals; in a file, a new line from time to time."""

    def __init__(self, order: Order, out: TextIO | None = None) -> None:
        self._order, self._out = order, sys.stderr if out is None else out
        self._is_live = self._out.isatty() or "ipykernel" in sys.modules
        self._interval_s = 0.3 if self._is_live else 5.0
        self._shown_s, self._shown_steps, self._rate, self._width = 0.0, 0, 0.0, 0

    def note(self, text: str) -> None:
        """Write a line above the progress; none for an empty text."""
        if text:
            self._out.write(f"{text}\n")

    def show(self, seconds: float, env_steps: int, best: float, *, last: bool = False) -> None:
        """Show the progress; `best` is -inf before the first look. Writes once per interval, and at the end."""
        passed_s = seconds - self._shown_s
        if passed_s < self._interval_s and not last:
            return
        if passed_s > 0.0 and env_steps > self._shown_steps:
            self._rate = (env_steps - self._shown_steps) / passed_s
        if last and seconds > 0.0:
            self._rate = env_steps / seconds
        self._shown_s, self._shown_steps = seconds, env_steps
        text = self._text(seconds, env_steps, best, last)
        padding = " " * max(0, self._width - len(text))
        self._width = len(text)
        start, end = ("\r", "\n" if last else "") if self._is_live else ("", "\n")
        self._out.write(f"{start}{text}{padding}{end}")
        self._out.flush()

    def _text(self, seconds: float, env_steps: int, best: float, last: bool) -> str:
        target = "" if self._order.target is None else f" (target {self._order.target:g})"
        parts = [
            f"{env_steps:,} steps",
            f"{self._rate:,.0f} steps/s",
            f"best {'–' if math.isinf(best) else f'{best:.4g}'}{target}",
            _clock(seconds),
        ]
        left_s = self._left_s(seconds, env_steps)
        if left_s is not None and not last:
            parts[-1] += (
                f", at most {_clock(left_s)} left" if self._order.target is not None else f", {_clock(left_s)} left"
            )
        return "  ".join(parts)

    def _left_s(self, seconds: float, env_steps: int) -> float | None:
        """Seconds until steps or time are used up; None if neither is limited."""
        order, left = self._order, []
        if order.seconds is not None:
            left.append(order.seconds - seconds)
        if order.steps is not None and self._rate > 0.0:
            left.append((order.steps - env_steps) / self._rate)
        return max(0.0, min(left)) if left else None


def _clock(seconds: float) -> str:
    """`1:05`, `2:03:04`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@contextmanager
def interrupts(call: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C makes this call; the next one interrupts as usual. Works in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        call()

    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    signal.signal(signal.SIGINT, take)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
