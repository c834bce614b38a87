"""The plan of a round: the default sizes of a cohort (environments by device, algorithm and speed,
the horizon, and the memory for them), when the round ends, and its time.

Its time is processor seconds, seconds by phase, and a few iterations as spans of every phase.
Processor seconds of a process include all its children. On a CPU, budgets and the share of
evaluation count them."""

from __future__ import annotations

import itertools
import math
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch

from podracer_core.algorithms import Algorithm, CohortConfig, algorithm_class
from podracer_core.buffers import require_replay
from podracer_core.catalogue import EnvironmentSpec, find_algorithm, find_recipe
from podracer_core.device import free_bytes
from podracer_core.environments import batched_class
from podracer_core.environments.processes import MOST_ISOLATED
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks import image_shape
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


_LEAST_ISOLATED = 2  # of a member
_LEAST_UPDATES = 16  # in a round whose steps are limited

_WAITING_ENVS = 32  # of a cohort whose environments wait: each has a process or a thread of its own
_PART = 1 / 20  # of the time that there is, for the start of the environments, and for a rollout
_LONGEST_START_S = 60.0
_SHORTEST_HORIZON = 8
_SNAPSHOTS = 4  # of a member, those of its three best looks and of the last


def usual_envs_per_member(
    algorithm: str,
    spec: EnvironmentSpec,
    device: str,
    members: int,
    *,
    env_steps: int = 0,
    horizon: int = 1,
    here: bool = True,
    is_batched: bool = False,
) -> int:
    """Those of the table (`find_recipe`), which fill one batch of `members`.

    A GPU gets more if environments are stepped `here` (workers may have no GPU), as long as the
    round's `env_steps` of a member (0: no limit) last for some rollouts of `horizon` steps.
    `is_batched`: of a class of the caller's."""
    if spec.isolation == "process":
        return max(_LEAST_ISOLATED, MOST_ISOLATED // members)
    is_batched = is_batched or batched_class(spec) is not None
    on_policy = find_algorithm(algorithm).on_policy
    least, wanted = (
        find_recipe(spec, place, is_batched=is_batched).envs_per_member(
            members, on_policy=on_policy
        )
        for place in ("cpu", device if here else "cpu")
    )
    if env_steps:
        wanted = min(wanted, env_steps // (horizon * _LEAST_UPDATES))
    return max(least, wanted)


def fitting_envs(
    usual: int, members: int, start_s: float, waits: bool, lanes: int, time_s: float | None
) -> int:
    """`usual` environments of a member, or fewer where those would take too long to start in
    `lanes` at a time.

    time_s   the time of the round or training; None: no limit
    """
    if waits:
        return max(1, min(usual, _WAITING_ENVS // members))
    limit_s = min(_LONGEST_START_S, math.inf if time_s is None else time_s * _PART)
    return usual if start_s <= 0.0 else max(1, min(usual, int(limit_s * lanes / start_s / members)))


def fitting_horizon(
    usual: int, envs: int, step_s: float, waits: bool, lanes: int, time_s: float
) -> int:
    """`usual` steps of a rollout, or fewer, so that one of `envs` environments takes a twentieth of
    the time."""
    rollout_step_s = step_s * (1 if waits else math.ceil(envs / lanes))
    longest = int(time_s * _PART / rollout_step_s) if rollout_step_s > 0.0 else usual
    return min(usual, max(_SHORTEST_HORIZON, longest))


def fitting_algorithm(
    cohort: CohortConfig,
    envs: int,
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    device: str,
) -> Algorithm:
    """The algorithm of a cohort, after `require_room`."""
    require_room(cohort, envs, space, action_space, device)
    return algorithm_class(cohort.algorithm)(cohort, space, action_space, device)


def require_room(
    cohort: CohortConfig,
    envs: int,
    space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    device: str,
) -> None:
    """Raises InvalidInput (NO_ROOM) unless a rollout of `envs` environments for each member, the
    networks and the replay buffer fit into the device's free memory; REPLAY_TOO_LARGE if this
    buffer alone does not."""
    info, members = find_algorithm(cohort.algorithm), len(cohort.members)
    shared = info.defaults() | dict(cohort.shared)
    numbers, horizon = math.prod(space.shape or ()), shared.get("horizon", 1)
    item_bytes = 1 if space.dtype == np.uint8 else 4
    # The observations and their successors here, and twice in the memory of the environments that
    # train or are judged; and the copies with which an update works, as floats: of a rollout, or of
    # a batch.
    rollout = members * envs * numbers * item_bytes * (2 * horizon + 1 + 4)
    worked_with = envs * horizon if info.on_policy else shared.get("batch_size", 0)
    image = image_shape(space)
    rollout += (32 if not image else 2 if info.on_policy else 8) * numbers * members * worked_with
    widths = [image.features if image else numbers, *shared.get("hidden_sizes", ())]
    parameters = sum(before * after for before, after in itertools.pairwise(widths))
    # Two networks, or three with two targets; gradients and two moments; the actor that acts; and
    # in each snapshot all but the gradients.
    networks = (
        members * parameters * 4 * (9 + 6 * _SNAPSHOTS if info.on_policy else 15 + 12 * _SNAPSHOTS)
    )
    replay, knobs = 0, "horizon or hidden_sizes"
    if not info.on_policy:
        action = 4 if isinstance(action_space, gymnasium.spaces.Box) else 8
        items = numbers * item_bytes, math.prod(action_space.shape or ()) * action
        capacity, prioritized = shared.get("replay_capacity", 0), shared.get("prioritized", False)
        *_, replay = require_replay(
            capacity, members, envs, horizon, items, torch.device(device), prioritized=prioritized
        )
        knobs = "horizon, hidden_sizes, batch_size or replay_capacity"
    needed, free = rollout + networks + replay, free_bytes(torch.device(device))
    if free is not None and needed > free:
        what = (
            f"{members} members of {envs} environments with observations of {numbers:,} "
            "numbers need"
        )
        parts = (
            f"{_gib(rollout)} for rollouts and batches, {_gib(networks)} for networks and "
            "snapshots, "
        )
        parts += f"{_gib(replay)} for replay"
        advice = f"lower members, envs_per_member, {knobs}, or shrink the observations"
        text = (
            f"{what} {_gib(needed)} GiB ({parts}); {_gib(free)} GiB are free on {device}: {advice}"
        )
        raise InvalidInput(text, reason="NO_ROOM", field="members")


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.1f}"
