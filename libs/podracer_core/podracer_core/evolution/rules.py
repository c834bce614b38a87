"""How the agents of one leaderboard compete: the job's wishes with every default filled in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from podracer_core.sections import Evolution


@dataclass(frozen=True)
class Rules(Evolution):
    """Frozen at the leaderboard's creation; generations 0: until the budget ends."""

    leaderboard_size: int = 4
    lineage_limit: int = 2
    generations: int = 0
    adaptive_rounds: bool = False
    generator: str = "tournament"
    updater: str = "lower_bound"
    seed: int = 0

    @classmethod
    def of(cls, evolution: Evolution, *, seed: int, updater: str, algorithm_count: int) -> Rules:
        """`evolution` with its defaults filled in; `updater` is that of the objective's
        statistic."""
        generator, adaptive = evolution.generator or evolution.scheduler, evolution.adaptive_rounds
        halves = generator in ("tournament", "halving") and algorithm_count > 1
        filled = {
            "leaderboard_size": evolution.places,
            "lineage_limit": evolution.lineage_limit or (evolution.places + 1) // 2,
            "generations": evolution.generations or 0,
            "adaptive_rounds": generator == "asha" or (halves if adaptive is None else adaptive),
            "generator": generator,
            "updater": evolution.updater or updater,
        }
        return cls(**{**vars(evolution), **filled}, seed=seed)

    @property
    def round_env_steps(self) -> int:
        """0: the round is limited by time."""
        return self.round.env_steps or 0

    @property
    def round_time_s(self) -> float:
        """0: the round is limited by steps."""
        return self.round.seconds or 0.0

    @property
    def shape_limit(self) -> int:
        """How many shapes of one algorithm may be alive: more would leave too few agents in a
        cohort to be worth it."""
        return max(2, self.population // 4)

    def effort(self, env_steps: int, cost_s: float) -> float:
        """The effort by which lines are compared: environment steps if rounds are in steps, else
        device seconds / M."""
        return float(env_steps) if self.round_env_steps else cost_s


MAX_STRETCH = 4.0
"""How many times its usual length a round of improving agents may be: a look at them is never far
away."""

TRIED_ROUNDS = 2.0
"""Rounds of a size that say enough of it: the first may have built and warmed up what the next ones
use."""

PATIENCE_ROUNDS = 4.0
"""Rounds of a size before half of it is tried, which may waste up to half of two rounds."""

PAYS = 1.1
"""Gain in throughput that twice the size must have for a still larger one to be tried."""

CLEARLY = 1.05
"""Gain in throughput that a smaller size must have to be preferred: agents that train on together
stay in the memory of their pod."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest that a job may still reserve for all of its agents together; infinite without a
    limit."""

    env_steps: float = math.inf
    cost_s: float = math.inf

    @property
    def is_nothing(self) -> bool:
        return self.env_steps < 1 or self.cost_s <= 0

    def places(self, wanted: int) -> int:
        """How many members a round may have so that each gets at least one step."""
        return int(min(wanted, self.env_steps))


@dataclass(frozen=True, slots=True)
class RoundBudget:
    """The limits of one round: steps of each member (0: none) and seconds of the pod (0: none)."""

    env_steps: int
    time_s: float


def round_budget(rules: Rules, stretch: float = 1.0) -> RoundBudget:
    """The round of a cohort."""
    return RoundBudget(math.floor(rules.round_env_steps * stretch), rules.round_time_s * stretch)


def cohort_stretch(curves: Iterable[Sequence[float]]) -> float:
    """How many times the usual length the round of a cohort may be: the mean of what its members
    deserve.

    `curves` are each member's last scores, oldest first; empty for one that was never judged.
    """
    deserved = [agent_stretch(curve) for curve in curves]
    return math.fsum(deserved) / len(deserved) if deserved else 1.0


def agent_stretch(curve: Sequence[float]) -> float:
    """1 for an agent whose last score is no record of its curve; doubled for each record in a row,
    up to 4.

    Records need no scale and no estimate of the noise: a curve that only fluctuates has one in n
    looks."""
    is_record = [
        score > best for score, best in zip(curve[1:], accumulate(curve, max), strict=False)
    ]
    in_a_row = next(
        (count for count, record in enumerate(reversed(is_record)) if not record), len(is_record)
    )
    return min(MAX_STRETCH, 2.0**in_a_row)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of rounds of one shape and size: steps and device seconds of all members
    together."""

    env_steps: float
    cost_s: float
    rounds: float

    @property
    def env_steps_per_s(self) -> float:
        """Environment steps of the whole cohort for each device second."""
        return self.env_steps / self.cost_s

    def with_member(self, env_steps: int, cost_s: float, member_count: int) -> Throughput:
        """The throughput with one more member's round; older rounds count ever less, the last eight
        or so matter.

        A member's cost is already its share of the pod's time, so members' costs add up to device
        seconds."""
        kept = 1.0 - 1.0 / (8.0 * member_count)
        return Throughput(
            self.env_steps * kept + env_steps,
            self.cost_s * kept + cost_s,
            self.rounds + 1.0 / member_count,
        )


def member_limit(measured: Mapping[int, Throughput], most: int) -> int:
    """How many members a cohort may have, of at most `most`; `measured` is by cohort size.

    `most` until something is known; then the size with the best throughput of the whole cohort.
    Twice that is tried while the last doubling has paid, half of it once where nothing smaller has
    been."""
    tried = {
        size: measured[size].env_steps_per_s
        for size in sorted(measured)
        if size <= most and measured[size].rounds >= TRIED_ROUNDS and measured[size].cost_s > 0.0
    }
    if not tried:
        return most
    best = max(tried)
    for size in sorted(tried, reverse=True):
        if tried[size] > CLEARLY * tried[best]:
            best = size
    if best == max(tried) < most and _has_paid(tried, best):
        return min(2 * best, most)
    if best == min(tried) and measured[best].rounds >= PATIENCE_ROUNDS:
        return max(1, best // 2)
    return best


def _has_paid(tried: Mapping[int, float], size: int) -> bool:
    """Whether `size` is that much better than half of it; nothing known speaks for trying."""
    smaller = [each for each in tried if 2 * each <= size]
    return not smaller or tried[size] >= PAYS * tried[max(smaller)]
