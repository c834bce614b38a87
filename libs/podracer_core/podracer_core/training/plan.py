"""The plan of a round."""

from __future__ import annotations

import math
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.sections import EVALUATION_FRACTION, EvaluationPlan
from podracer_core.statistics import bootstrap_t_lower_bound, claim_level

Statistic = Literal["mean", "lower_bound"]

_HURRY_S = 1.5  # for the evaluations of a round that is told to end
# of the time for training that is kept free for the next update
_FIRST_UPDATE_PART, _MOST_UPDATE_PART = 0.1, 0.5


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The end of a round and the evaluation of its members.

    env_steps            of each member; 0: no limit. The last rollout is finished, so up to one
                         rollout more is taken
    duration_s           seconds, evaluation included; None: no limit
    cost_s               seconds of processors (of the GPU if there is one) that the pod may use;
                         None: no limit
    evaluation_fraction  part of the round's use that evaluation may take
    target               the statistic of a full evaluation that ends the round at once; None: none
    episodes             of a full evaluation
    screening_episodes   of the evaluations that follow training
    admission_score      a candidate is evaluated in full only while it may have this score; None:
                         always
    seed                 the job's: evaluation seeds derive from it
    is_last_word         no further test of the target follows: each is at the level of its number
                         (`claim_level`)
    lowest_return        of the job's intact evaluation episodes; inf: unknown. Broken ones are
                         counted with it
    """

    env_steps: int = 0
    duration_s: float | None = None
    cost_s: float | None = None
    evaluation_fraction: float = EVALUATION_FRACTION
    target: float | None = None
    statistic: Statistic = "lower_bound"
    episodes: int = EvaluationPlan.episodes
    screening_episodes: int = 8
    admission_score: float | None = None
    seed: int = 0
    lowest_return: float = math.inf
    is_last_word: bool = False

    def __post_init__(self) -> None:
        if (
            not self.env_steps
            and self.duration_s is None
            and self.cost_s is None
            and self.target is None
        ):
            raise InvalidInput("a round needs an end: env_steps, duration_s, cost_s or target")
        if (
            not 0.0 < self.evaluation_fraction <= 1.0
            or self.episodes < 1
            or self.screening_episodes < 1
        ):
            raise InvalidInput(
                "a round needs an evaluation_fraction in (0, 1] and at least one episode an "
                f"evaluation, not {self.evaluation_fraction}, {self.episodes} and "
                f"{self.screening_episodes}"
            )

    def part(self, elapsed_s: float, env_steps: int, used_s: float) -> float:
        """The elapsed part of the round, 1 at its end; 0 if its length is unknown."""
        return max(
            elapsed_s / self.duration_s if self.duration_s else 0.0,
            env_steps / self.env_steps if self.env_steps else 0.0,
            used_s / self.cost_s if self.cost_s else 0.0,
        )

    def score(self, result: EvaluationResult) -> float:
        """The number of an evaluation that is compared with the target."""
        return result.mean if self.statistic == "mean" else result.lower_bound

    def is_reached_by(self, result: EvaluationResult, number: int) -> bool:
        """Whether evaluation `number`, from 1, of those that test it reaches the target, if it is a
        full one."""
        if (
            self.target is None
            or result.episodes < self.episodes
            or self.score(result) < self.target
        ):
            return False
        if (
            not self.is_last_word
            or self.statistic == "mean"
            or result.deterministic
            or result.episodes < 2
        ):
            return True
        return (
            bootstrap_t_lower_bound(result.returns, claim_level(number), self.seed) >= self.target
        )


class RoundTime:
    """Says when a rollout, an update and an evaluation have to end. It is asked at every step, so
    it is cheap."""

    def __init__(
        self, duration_s: float | None, elapsed_s: Callable[[], float], is_told: Callable[[], bool]
    ) -> None:
        """`duration_s` None: no limit. `elapsed_s`: since the round began; `is_told`: whether it is
        told to end."""
        self._duration_s = math.inf if duration_s is None else duration_s
        self._elapsed_s, self._is_told_now = elapsed_s, is_told
        self._update_s = (duration_s or 0.0) * _FIRST_UPDATE_PART
        self._trains_until_s = self._collects_until_s = self._told_at_s = math.inf
        self._asked_at_s = 0.0

    def divide(self, closing_s: float) -> None:
        """Before a rollout: keep `closing_s` seconds for the last evaluations, and the last
        update's for the next."""
        self._asked_at_s = self._elapsed_s()
        self._trains_until_s = self._duration_s - closing_s
        left_s = max(0.0, self._trains_until_s - self._asked_at_s)
        self._collects_until_s = self._trains_until_s - min(
            self._update_s, _MOST_UPDATE_PART * left_s
        )

    def note_update(self, seconds: float) -> None:
        """Note how long an update has taken."""
        self._update_s = seconds

    def is_up(self) -> bool:
        """Whether training has to end."""
        return self.is_told() or self._elapsed_s() >= self._trains_until_s

    def has_collected(self) -> bool:
        """Asked before every step but the first: whether a rollout has to end. A step takes as long
        as the last one."""
        now_s = self._elapsed_s()
        step_s, self._asked_at_s = now_s - self._asked_at_s, now_s
        return self.is_told() or now_s + step_s >= self._collects_until_s

    def is_told(self) -> bool:
        """Whether the round is told to end."""
        if not self._is_told_now():
            return False
        self._told_at_s = min(self._told_at_s, self._elapsed_s())
        return True

    def ends_at_s(self) -> float:
        """When the last evaluations have to end; infinite without a limit."""
        return (
            min(self._duration_s, self._told_at_s + _HURRY_S)
            if self.is_told()
            else self._duration_s
        )

    def evaluation_left_s(self, *, is_last: bool) -> float:
        """Seconds that are left for an evaluation: one during training leaves the last ones their
        part."""
        ends_at_s = self.ends_at_s() if is_last or self.is_told() else self._trains_until_s
        return ends_at_s - self._elapsed_s()


_FIRST = 3
_PAUSE_S = 5.0

SAMPLED = "sampled"
"""The attribute of a span that represents others of its name; their total time is the `TOTAL` of
its parent."""
TOTAL = "seconds."
"""The prefix of attributes with the total time of a span's children, by their name."""


def processor_seconds() -> float:
    """Processor time of this process so far, with all threads, ended children, and (on Linux)
    living children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_seconds_of, _children()))
    )


def _children() -> list[int]:
    """The living children; the kernel lists them by the thread that started them."""
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            found += map(int, listed.read_text().split())
    return found


def _seconds_of(pid: int) -> float:
    with suppress(OSError):  # it has just ended
        # the kernel's number for the processor clock of a process
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


class Occasions:
    """Selects the first three iterations, and then one after 5 s, 10 s, 20 s and so on: a long
    round has few more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = 0
        self._next_at = 0.0
        self._pause_s = _PAUSE_S

    def is_next(self) -> bool:
        """Whether this iteration is selected."""
        now = self._clock()
        if self._taken >= _FIRST:
            if now < self._next_at:
                return False
            self._pause_s *= 2
        self._taken += 1
        self._next_at = now + self._pause_s
        return True


class Phases:
    """The phases of one round, by this process's clock: GPU work launched in one phase may end in
    another.

    The times of all iterations add up; selected ones (`Occasions`) are also recorded as spans.
    """

    def __init__(
        self,
        span: Callable[..., AbstractContextManager[object]] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`span`: begins a span with a name and attributes; None: no spans are recorded."""
        self._span, self._clock = span, clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._occasions = Occasions()
        self._iteration, self._is_sampled = 0, False

    def next_iteration(self) -> None:
        """Begin another iteration."""
        self._iteration += 1
        self._is_sampled = self._span is not None and self._occasions.is_next()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context manager around a phase."""
        own = self._begin(name, sampled=True, iteration=self._iteration)
        began_at = self._clock()
        try:
            with own:
                yield
        finally:
            self._seconds[name] += self._clock() - began_at

    def part(self, name: str) -> AbstractContextManager[object]:
        """A part of a phase: only a span, where its phase is one."""
        return self._begin(name)

    def _begin(self, name: str, **attributes: object) -> AbstractContextManager[object]:
        if self._span is None or not self._is_sampled:
            return nullcontext()
        return self._span(name, **attributes)

    @property
    def seconds(self) -> Mapping[str, float]:
        """The seconds of each phase so far."""
        return dict(self._seconds)

    @property
    def attributes(self) -> Mapping[str, float | int]:
        """The attributes for the span of the round."""
        totals = {f"{TOTAL}{name}": round(seconds, 6) for name, seconds in self._seconds.items()}
        return totals | {"iterations": self._iteration}
