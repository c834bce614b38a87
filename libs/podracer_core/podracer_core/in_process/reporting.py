"""Output during training: looks, a line of progress, and what has broken; a training as a
figure."""

from __future__ import annotations

import importlib
import math
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from podracer_core.errors import PreconditionFailed, UserCodeFailed

if TYPE_CHECKING:
    from podracer_core.environments import VecEnvironment
    from podracer_core.in_process.order import Order
    from podracer_core.training import Selection, TrainingSession

_IN_VAIN = 3  # rollouts in a row


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
        return {
            "seconds": self.seconds,
            "env_steps": self.env_steps,
            "returns": list(self.returns),
            "best": self.best,
        }


class ProgressLine:
    """One line that is overwritten, for notebooks and terminals; in a file, a new line from time to
    time."""

    def __init__(self, order: Order, out: TextIO | None = None) -> None:
        self._order, self._out = order, sys.stderr if out is None else out
        self._is_live = self._out.isatty() or "ipykernel" in sys.modules
        self._interval_s = 0.3 if self._is_live else 5.0
        self._shown_s, self._shown_steps, self._rate, self._width = 0.0, 0, 0.0, 0

    def note(self, text: str) -> None:
        """Write a line above the progress; none for an empty text."""
        if text:
            self._out.write(f"{text}\n")

    def show(
        self,
        seconds: float,
        env_steps: int,
        best: float,
        *,
        training: float = math.nan,
        last: bool = False,
    ) -> None:
        """Show the progress. `best` is -inf before the first look; `training`: the mean return of
        training episodes, NaN before the first. Writes once per interval, and at the end."""
        passed_s = seconds - self._shown_s
        if passed_s < self._interval_s and not last:
            return
        if passed_s > 0.0 and env_steps > self._shown_steps:
            self._rate = (env_steps - self._shown_steps) / passed_s
        if last and seconds > 0.0:
            self._rate = env_steps / seconds
        self._shown_s, self._shown_steps = seconds, env_steps
        text = self._text(seconds, env_steps, best, training, last)
        padding = " " * max(0, self._width - len(text))
        self._width = len(text)
        start, end = ("\r", "\n" if last else "") if self._is_live else ("", "\n")
        self._out.write(f"{start}{text}{padding}{end}")
        self._out.flush()

    def _text(
        self, seconds: float, env_steps: int, best: float, training: float, last: bool
    ) -> str:
        target = "" if self._order.target is None else f" (target {self._order.target:g})"
        parts = [
            f"{env_steps:,} steps",
            f"{self._rate:,.0f} steps/s",
            *([] if math.isnan(training) else [f"training {training:.4g}"]),
            f"best {'–' if math.isinf(best) else f'{best:.4g}'}{target}",
            _clock(seconds),
        ]
        left_s = self._left_s(seconds, env_steps)
        if left_s is not None and not last:
            parts[-1] += (
                f", at most {_clock(left_s)} left"
                if self._order.target is not None
                else f", {_clock(left_s)} left"
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


class Course:
    """How a training goes, and its line of progress if it is `shown`.

    looks    at the members
    returns  of training episodes, by the environment steps of all members
    best     the highest mean return of a member so far
    """

    def __init__(self, order: Order, shown: bool) -> None:
        self._line = ProgressLine(order) if shown else None
        self.looks: list[Look] = []
        self.returns: list[tuple[int, float]] = []
        self.best = -math.inf

    def note(self, text: str) -> None:
        """See `ProgressLine.note`."""
        if self._line is not None:
            self._line.note(text)

    def go_on(
        self, seconds: float, env_steps: int, returns: Sequence[float], *, last: bool
    ) -> None:
        """Note and show where training stands; `returns` [M] of training episodes, NaN before the
        first."""
        known = [mean for mean in returns if not math.isnan(mean)]
        training = math.fsum(known) / len(known) if known else math.nan
        if known:
            self.returns.append((env_steps, training))
        if self._line is not None:
            self._line.show(seconds, env_steps, self.best, training=training, last=last)


class Breakages:
    """What has broken in the training environments and in evaluations.

    warnings   what was told, after that which was told `before`
    first      the first break in training, as a sentence; empty if nothing has broken
    """

    def __init__(
        self,
        environment: VecEnvironment,
        session: TrainingSession,
        selection: Selection,
        told: Sequence[str],
    ) -> None:
        self._environment, self._session, self._selection = environment, session, selection
        self._name = getattr(environment, "name", type(environment).__name__)
        self.warnings = list(told)
        self.first = self._traceback = ""
        self._has_told_evaluation = False
        self._failed_starts = 0

    def warn(self, text: str) -> None:
        """Tell the user, and remember it for the result."""
        self.warnings.append(text)
        warnings.warn(text, stacklevel=5)

    def collect(self) -> None:
        """Collect what has broken since the last call."""
        for each in self._environment.take_breaks():
            self._failed_starts += each.text.startswith("reset: ")
            self._traceback = self._traceback or each.traceback
            self._tell_first(each.text)
        if (text := self._selection.breaks.first) and not self._has_told_evaluation:
            self._has_told_evaluation = True
            self.warn(
                f"{self._name}: an evaluation episode broke; {text}. Broken episodes have no return"
            )

    def check(self) -> None:
        """Raises UserCodeFailed if training has not seen a valid step for three rollouts.
        Synchronizes with the device."""
        broken, _, in_vain = self._session.breaks()
        if broken:
            self._tell_first("a number was not finite")
        if in_vain >= _IN_VAIN:
            message = f"{self._name}: every step of {in_vain} rollouts broke. {self.first}"
            raise UserCodeFailed(message, user_traceback=self._traceback, environment=self._name)

    def conclude(self) -> None:
        """Tell how many episodes have broken."""
        broken, ended, _ = (count + self._failed_starts for count in self._session.breaks())
        evaluation = self._selection.breaks
        counts = {
            "training": (broken, ended),
            "evaluation": (sum(evaluation.broken), sum(evaluation.played)),
        }
        parts = [
            f"{bad:,} of {every:,} {kind} episodes" for kind, (bad, every) in counts.items() if bad
        ]
        if parts:
            self.warn(f"{self._name}: {' and '.join(parts)} broke")

    def _tell_first(self, text: str) -> None:
        if not self.first:
            self.first = f"The first training episode that broke: {text}"
            self.warn(
                f"{self._name}: a training episode broke; {text}. Broken episodes are left out"
            )


def _clock(seconds: float) -> str:
    """`1:05`, `2:03:04`."""
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes}:{rest:02d}"
        if minutes < 60
        else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    )


@contextmanager
def interrupts(call: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C makes this call; the next one interrupts as usual. Works in the main thread
    only."""
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


def plot_looks(
    history: Sequence[Look],
    title: str,
    target: float | None,
    training: Sequence[tuple[int, float]] = (),
) -> Any:
    """A matplotlib figure: a thin line for each member, a thick one for the best so far, the
    target, and the returns of `training` episodes by environment steps.

    Raises PreconditionFailed if matplotlib is missing, or the history is empty.
    """
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        message = f"figures need the extra podracer-core[plot]: {error}"
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    if not history:
        raise PreconditionFailed(
            "nothing to plot: training was too short for an evaluation, or its history was not "
            "stored"
        )
    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    if training:
        axes.plot(
            *zip(*training, strict=True),
            color="tab:orange",
            linewidth=1.0,
            label="training episodes",
        )
    steps = [look.env_steps for look in history]
    for member in range(len(history[0].returns)):
        axes.plot(
            steps,
            [look.returns[member] for look in history],
            color="tab:blue",
            alpha=0.35,
            linewidth=1.0,
        )
    axes.plot(
        steps, [look.best for look in history], color="tab:blue", linewidth=2.0, label="best so far"
    )
    if target is not None:
        axes.axhline(target, color="tab:gray", linestyle="--", label="target")
    axes.set(title=title, xlabel="environment steps of all members", ylabel="return")
    axes.legend(loc="lower right")
    # a notebook shows what a cell ends with, and would show open figures once more
    pyplot.close(figure)
    return figure
