"""The end of a job, and the episodes that its candidates are judged by."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.config import Seconds
from podracer_core.config.scalars import MAX_SECONDS
from podracer_core.jobs.checks import MAX_COUNT, Checks
from podracer_core.jobs.messages import read, write
from podracer_core.statistics import student_t_half_width

EVALUATION_FRACTION = 0.2
"""Part of a round that evaluation may take."""
MIN_EPISODES, MAX_EPISODES = 8, 10_000
MIN_BUDGET_S = 0.1
"""The shortest round that the orchestrator leases; a pod achieves nothing in less."""
CONFIRMING = (agent_pb2.EVALUATION_PURPOSE_CHALLENGE, agent_pb2.EVALUATION_PURPOSE_FINAL)
"""The purposes of evaluations with fresh seeds, which have not selected their policy."""


def broken_episodes(message: agent_pb2.Evaluation | leaderboard_service_pb2.Agent) -> int:
    """The number of episodes whose world broke."""
    return message.broken_number_episodes + message.broken_code_episodes


def counted(evaluation: agent_pb2.Evaluation, lowest: float | None) -> agent_pb2.Evaluation | None:
    """Returns, mean and bounds for ranking and targets: each broken episode counts with `lowest`,
    the lowest return of an intact episode that is known of the job, or this evaluation's own lowest
    if that is lower. None if no episode was intact: it is never ranked."""
    broken, returns = broken_episodes(evaluation), list(evaluation.returns)
    if broken and not returns:
        return None
    if not broken or evaluation.deterministic:
        return evaluation
    returns += [min(returns if lowest is None else [lowest, *returns])] * broken
    mean = statistics.fmean(returns)
    half = student_t_half_width(statistics.stdev(returns), len(returns))
    return agent_pb2.Evaluation(
        returns=returns, mean=mean, lower_bound=mean - half, upper_bound=mean + half
    )


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

    @classmethod
    def from_message(cls, message: evolution_pb2.Objective) -> Objective:
        """The objective of a message; unset fields are None."""
        return read(cls, message)

    def to_message(self) -> evolution_pb2.Objective:
        """The inverse of `from_message`."""
        return write(self, evolution_pb2.Objective())

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

    @classmethod
    def from_message(cls, message: job_pb2.EvaluationSpec) -> EvaluationPlan:
        """The plan of a message, with the default filled in."""
        return read(cls, message)

    def to_message(self) -> job_pb2.EvaluationSpec:
        """The inverse of `from_message`."""
        return write(self, job_pb2.EvaluationSpec())

    def check(self, check: Checks) -> None:
        """The number of episodes."""
        check.between(self.episodes, MIN_EPISODES, MAX_EPISODES, "evaluation.episodes")
