"""The end of a job, and the episodes that its candidates are judged by."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
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
