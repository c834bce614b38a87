"""The result of an evaluation, with its confidence interval; conversion to a message, to JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from podracer.common.v1 import agent_pb2
from podracer_core.environments.vec_environment import EpisodeStatistic
from podracer_core.errors import InvalidInput
from podracer_core.statistics import student_t_quantile

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One policy's episodes, in the order of their seeds.

    returns      undiscounted sums of raw rewards
    lengths      environment steps
    seeds        keys of the episodes' random numbers; the same keys give the same returns
    invalid      number of episodes that ended because their world broke; they count with their return so far
    statistic    the environment's own, if its episodes are all alike; mean and interval are then the statistic's
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    invalid: int = 0
    statistic: EpisodeStatistic | None = None

    def __post_init__(self) -> None:
        if not len(self.returns) == len(self.lengths) == len(self.seeds) >= 1:
            raise InvalidInput("an evaluation needs one return, length and seed an episode, and at least one episode")

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.returns)

    @property
    def mean(self) -> float:
        """Mean return, or the environment's own statistic."""
        if self.statistic is not None:
            return self.statistic.value
        return math.fsum(self.returns) / self.episodes

    @property
    def std(self) -> float:
        """Sample standard deviation of the returns (divided by n - 1); 0 for one episode."""
        if self.episodes == 1:
            return 0.0
        mean = math.fsum(self.returns) / self.episodes
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.returns) / (self.episodes - 1))

    @property
    def half_width(self) -> float:
        """Half the width of the two-sided 95 % Student-t interval of the mean return; infinite for one episode."""
        if self.episodes == 1:
            return math.inf
        quantile = student_t_quantile(0.5 + _CONFIDENCE / 2, self.episodes - 1)
        return quantile * self.std / math.sqrt(self.episodes)

    @property
    def lower_bound(self) -> float:
        """The lower end of that interval, or of the statistic's."""
        return self.mean - self.half_width if self.statistic is None else self.statistic.lower_bound

    @property
    def upper_bound(self) -> float:
        """The upper end of that interval, or of the statistic's."""
        return self.mean + self.half_width if self.statistic is None else self.statistic.upper_bound

    @property
    def deterministic(self) -> bool:
        """Whether the environment's own statistic stands for all episodes."""
        return self.statistic is not None

    def repeated(self, seeds: tuple[int, ...]) -> EvaluationResult:
        """The first episode's result for all `seeds`, as each would play the same episode."""
        count, invalid = len(seeds), min(self.invalid, 1)
        return EvaluationResult(
            self.returns[:1] * count, self.lengths[:1] * count, seeds, invalid * count, self.statistic
        )

    def __add__(self, other: EvaluationResult) -> EvaluationResult:
        """The sum of both results. Raises InvalidInput if the environment's own statistics differ."""
        if self.statistic != other.statistic:
            message = f"evaluations of one policy have different statistics: {self.statistic} and {other.statistic}"
            raise InvalidInput(message)
        return EvaluationResult(
            self.returns + other.returns,
            self.lengths + other.lengths,
            self.seeds + other.seeds,
            self.invalid + other.invalid,
            self.statistic,
        )


def result_to_message(result: EvaluationResult) -> agent_pb2.Evaluation:
    """The numbers of an Evaluation; the caller adds agent, purpose and time.

    The interval of a single episode is unbounded; both bounds are then its return.
    """
    lower, upper = _bounds(result)
    return agent_pb2.Evaluation(
        returns=result.returns,
        lengths=result.lengths,
        seeds=result.seeds,
        mean=result.mean,
        standard_deviation=result.std,
        lower_bound=lower,
        upper_bound=upper,
        deterministic=result.deterministic,
        statistics={} if result.statistic is None else result.statistic.statistics,
    )


def result_from_message(message: agent_pb2.Evaluation) -> EvaluationResult:
    """The inverse of `result_to_message`. Raises InvalidInput for lists of different lengths."""
    statistic = None
    if message.deterministic:
        statistic = EpisodeStatistic(message.mean, message.lower_bound, message.upper_bound, dict(message.statistics))
    return EvaluationResult(tuple(message.returns), tuple(message.lengths), tuple(message.seeds), statistic=statistic)


def result_to_json(result: EvaluationResult) -> dict[str, Any]:
    """The result as stored in a checkpoint's metadata under "evaluation"."""
    lower, upper = _bounds(result)
    return {
        "episodes": result.episodes,
        "returns": list(result.returns),
        "lengths": list(result.lengths),
        "seeds": list(result.seeds),
        "mean": result.mean,
        "standard_deviation": result.std,
        "lower_bound": lower,
        "upper_bound": upper,
        "deterministic": result.deterministic,
        "statistics": {} if result.statistic is None else dict(result.statistic.statistics),
    }


def result_from_json(value: Mapping[str, Any]) -> EvaluationResult:
    """The inverse of `result_to_json`. Raises InvalidInput for anything else."""
    try:
        returns = tuple(float(number) for number in value["returns"])
        statistic = None
        if value.get("deterministic", False):  # absent where an earlier version wrote it
            further = {str(name): float(number) for name, number in value["statistics"].items()}
            mean, lower, upper = (float(value[name]) for name in ("mean", "lower_bound", "upper_bound"))
            statistic = EpisodeStatistic(mean, lower, upper, further)
        lengths, seeds = tuple(map(int, value["lengths"])), tuple(map(int, value["seeds"]))
        return EvaluationResult(returns, lengths, seeds, statistic=statistic)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"not a stored evaluation: {error!r}", reason="BAD_EVALUATION") from error


def _bounds(result: EvaluationResult) -> tuple[float, float]:
    if result.deterministic or math.isfinite(result.half_width):
        return result.lower_bound, result.upper_bound
    return result.mean, result.mean
