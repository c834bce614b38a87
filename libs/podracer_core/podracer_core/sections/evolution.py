"""The competition of a job's agents, how new agents are made, when the job ends, and the episodes
that candidates are judged by. `Checks` gathers the mistakes in a job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from podracer_core.config import MAX_SECONDS, Seconds
from podracer_core.errors import FieldViolation, InvalidInput

MAX_COUNT = (1 << 62) - 1
"""The greatest count: two of them can be added without overflow in every part of the system."""

_EXTENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def is_extension_name(text: str) -> bool:
    """Whether `text` is a valid name of an installed generator, updater or fusion."""
    return _EXTENSION.fullmatch(text) is not None


class Checks:
    """Gathers violations; a condition that NaN is part of must be written so that NaN fails it."""

    def __init__(self) -> None:
        self.violations: list[FieldViolation] = []

    def that(self, condition: bool, field: str, message: str) -> bool:
        """Note `message` unless the condition holds. Returns the condition."""
        if not condition:
            self.violations.append(FieldViolation(field, message))
        return condition

    def between(self, value: float | None, low: float, high: float, field: str) -> bool:
        """Require `low <= value <= high`. None is valid: it stands for a default."""
        if value is None:
            return True
        return self.that(
            low <= value <= high, field, f"expected {low:_} to {high:_}, got {value!r}"
        )

    def positive(self, value: float | None, high: float, field: str) -> bool:
        """Require a value above 0. None is valid: it stands for a default."""
        if value is None or 0 < value <= high:
            return True
        most = f" and at most {high:_}" if value > high else ""
        return self.that(False, field, f"expected more than 0{most}, got {value!r}")

    def finish(self) -> None:
        """Raises InvalidInput with all noted mistakes."""
        if self.violations:
            message = "\n".join(str(violation) for violation in self.violations)
            raise InvalidInput(message, violations=self.violations, reason="INVALID_JOB")


EVALUATION_FRACTION = 0.2
"""Part of a round that evaluation may take."""
MIN_EPISODES, MAX_EPISODES = 8, 10_000
MIN_BUDGET_S = 0.1
"""The shortest round that the orchestrator leases; a pod achieves nothing in less."""


@dataclass(frozen=True)
class Objective:
    """The job ends at the first of these. A target, or one of the limits, is required.

    target_return   return to reach
    statistic       the statistic that must reach it: the lower end of the mean's 95 % interval, or
                    the mean itself
    max_env_steps   environment steps of all agents together
    max_duration    active time, in seconds; pauses do not count
    max_cost        device seconds, evaluation included: of the pods' processors, or of their GPUs
    """

    target_return: float | None = None
    statistic: Literal["lower_bound", "mean"] = "lower_bound"
    max_env_steps: int | None = None
    max_duration: Seconds | None = None
    max_cost: Seconds | None = None

    def check(self, check: Checks) -> None:
        """Check that there is an end, and that no limit is too short for a round."""
        limits = (self.target_return, self.max_env_steps, self.max_duration, self.max_cost)
        has_end = any(limit is not None for limit in limits)
        check.that(
            has_end,
            "objective",
            "expected a target_return, max_env_steps, max_duration or max_cost; got none",
        )
        finite = self.target_return is None or math.isfinite(self.target_return)
        check.that(
            finite,
            "objective.target_return",
            f"expected a finite number, got {self.target_return!r}",
        )
        check.positive(self.max_env_steps, MAX_COUNT, "objective.max_env_steps")
        for name, limit in (("max_duration", self.max_duration), ("max_cost", self.max_cost)):
            if check.positive(limit, MAX_SECONDS, f"objective.{name}"):
                least = (
                    f"is too short for any round: expected at least {MIN_BUDGET_S:g} s, got "
                    f"{limit!r}"
                )
                check.that(limit is None or limit >= MIN_BUDGET_S, f"objective.{name}", least)


@dataclass(frozen=True)
class EvaluationPlan:
    """The number of episodes that judge a candidate.

    evaluator   name of an evaluator (`podracer.evaluators`); empty: greedy episodes
    """

    episodes: int = 32
    evaluator: str = ""

    def check(self, check: Checks) -> None:
        """The number of episodes."""
        check.between(self.episodes, MIN_EPISODES, MAX_EPISODES, "evaluation.episodes")


MAX_POPULATION = 4096
MAX_GENERATIONS = 1_000_000


@dataclass(frozen=True)
class Round:
    """The length of a round, after which members are judged: seconds of the pod, or environment
    steps of one agent."""

    seconds: Seconds | None = None
    env_steps: int | None = None


@dataclass(frozen=True)
class Evolution:
    """How agents compete and how new ones are made (DESIGN §8).

    population          agents alive at a time
    leaderboard_size    places on the leaderboard, at most the population; None: 4, or the
                        population if smaller
    tournament_size     candidates among which a tournament selection picks the best
    replaced_fraction   part of a rung, from the bottom, that may be replaced
    exploration         probability of a fresh agent in place of an exploited one
    lineage_limit       places that one lineage may hold; None: half of the leaderboard, rounded up
    keep_replay         checkpoints of off-policy agents always hold their transitions, which
                        children inherit; else only agents with at most 16 MiB of them store them,
                        if the object store is a folder
    selection           how the parent of an exploited agent is selected
    crossover           probability that a child is fused from two parents of one shape
    noise_scale         standard deviation of the noise on a child's parameters, relative to each
                        tensor's own
    generator, updater  names of extensions; None: the scheduler's own, the objective's statistic
    generations         of the generational scheduler; None: until the budget ends
    adaptive_rounds     longer rounds for agents that improve, an early end for hopeless ones; None:
                        in a tournament, or with halving, of several algorithms. The generator asha
                        always has them
    ensemble_size       number of best candidates in the ensemble at the end; 0: no ensemble
    """

    scheduler: Literal["tournament", "generational"] = "tournament"
    population: int = 8
    leaderboard_size: int | None = None
    round: Round = field(default_factory=lambda: Round(seconds=15.0))
    tournament_size: int = 2
    replaced_fraction: float = 0.25
    exploration: float = 0.1
    lineage_limit: int | None = None
    keep_replay: bool = False
    selection: Literal["tournament", "truncation"] = "tournament"
    crossover: float = 0.0
    noise_scale: float = 0.0
    generator: str | None = None
    updater: str | None = None
    generations: int | None = None
    adaptive_rounds: bool | None = None
    ensemble_size: int = 0

    @property
    def places(self) -> int:
        """`leaderboard_size`, the default filled in."""
        return self.leaderboard_size or min(4, self.population)

    def check(self, check: Checks) -> None:
        """Check each key, and the keys that depend on each other.

        The server checks whether it has the generator and the updater.
        """
        self._check_places(check)
        one = (self.round.seconds is None) != (self.round.env_steps is None)
        check.that(
            one, "evolution.round", "expected either seconds or env_steps, such as {seconds: 15}"
        )
        check.positive(self.round.seconds, MAX_SECONDS, "evolution.round.seconds")
        check.positive(self.round.env_steps, MAX_COUNT, "evolution.round.env_steps")
        check.between(self.tournament_size, 1, MAX_POPULATION, "evolution.tournament_size")
        for name in ("replaced_fraction", "exploration", "crossover", "noise_scale"):
            check.between(getattr(self, name), 0.0, 1.0, f"evolution.{name}")
        check.between(self.lineage_limit, 1, MAX_POPULATION, "evolution.lineage_limit")
        for kind, extension in (("generator", self.generator), ("updater", self.updater)):
            expected = f"expected the name of an installed {kind}, got {extension!r}"
            check.that(
                extension is None or is_extension_name(extension), f"evolution.{kind}", expected
            )
        if check.between(self.generations, 1, MAX_GENERATIONS, "evolution.generations"):
            check.that(
                self.generations is None or self.scheduler == "generational",
                "evolution.generations",
                "only generational evolution has generations: write scheduler: generational, or "
                "leave it out",
            )

    def _check_places(self, check: Checks) -> None:
        if not check.between(self.population, 1, MAX_POPULATION, "evolution.population"):
            return
        if not check.between(
            self.leaderboard_size, 1, self.population, "evolution.leaderboard_size"
        ):
            return
        size, places = self.ensemble_size, self.places
        message = (
            f"expected 0 for none, or 2 to {places}, the places of the leaderboard; got {size}"
        )
        if places < 2:
            message = f"expected 0: a leaderboard of one place has no ensemble; got {size}"
        check.that(size == 0 or 2 <= size <= places, "evolution.ensemble_size", message)
