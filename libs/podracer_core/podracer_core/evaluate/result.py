"""The result of an evaluation, with its confidence interval; conversion to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from podracer_core.environments import EpisodeStatistic
from podracer_core.errors import InvalidInput
from podracer_core.statistics import student_t_half_width

_COUNTS: Mapping[str, tuple[str, type]] = {
    "broken_numbers": ("broken_number_episodes", int),
    "broken_code": ("broken_code_episodes", int),
    "first_break": ("first_break", str),
    "cut": ("cut_episodes", int),
}
"""Names in an Evaluation, and types."""
_SUMS = ("returns", "lengths", "seeds", "broken_numbers", "broken_code", "cut")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One policy's episodes, in the order of their seeds.

    An episode whose world breaks has no return: another one, with a seed derived from its seed,
    takes its place. So returns, mean and interval are of intact episodes only; `counted` also
    counts the broken ones. If no episode was intact, there are no returns, and mean and bounds are
    -inf.

    returns         undiscounted sums of raw rewards
    lengths         environment steps
    seeds           keys of the episodes' random numbers; the same keys give the same returns
    broken_numbers  episodes that ended because a number was not finite
    broken_code     episodes that ended because the environment raised an exception, or its process
                    died
    first_break     what broke first: "step 13: the reward was nan"; empty if nothing did
    cut             of the returns, those of episodes that evaluation ended because the environment
                    has no time limit
    statistic       the environment's own, if its episodes are all alike; mean and interval are then
                    the statistic's
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    broken_numbers: int = 0
    broken_code: int = 0
    first_break: str = ""
    cut: int = 0
    statistic: EpisodeStatistic | None = None

    def __post_init__(self) -> None:
        if not len(self.returns) == len(self.lengths) == len(self.seeds) or not (
            self.returns or self.broken
        ):
            raise InvalidInput(
                "an evaluation needs one return, length and seed an episode, and at least one "
                "episode"
            )

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(self.returns)

    @property
    def broken(self) -> int:
        """The number of episodes whose world broke."""
        return self.broken_numbers + self.broken_code

    def counted(self, lowest: float) -> EvaluationResult:
        """The result for ranking and targets: each broken episode counts with `lowest`, the lowest
        return of an intact episode that is known of the job or training, or this result's lowest if
        that is lower."""
        lowest, count = min((lowest, *self.returns)), self.broken
        if not count or self.statistic is not None or math.isinf(lowest):
            return self
        return self + EvaluationResult((lowest,) * count, (0,) * count, (0,) * count)

    @property
    def mean(self) -> float:
        """Mean return, or the environment's own statistic."""
        if self.statistic is not None:
            return self.statistic.value
        if not self.returns:
            return -math.inf
        return math.fsum(self.returns) / self.episodes

    @property
    def std(self) -> float:
        """Sample standard deviation of the returns (divided by n - 1); 0 for one episode."""
        if self.episodes <= 1:
            return 0.0
        mean = math.fsum(self.returns) / self.episodes
        return math.sqrt(
            math.fsum((value - mean) ** 2 for value in self.returns) / (self.episodes - 1)
        )

    @property
    def half_width(self) -> float:
        """Half the width of the two-sided 95 % Student-t interval of the mean return; infinite for
        fewer than two."""
        return student_t_half_width(self.std, self.episodes)

    @property
    def lower_bound(self) -> float:
        """The lower end of that interval, or of the statistic's."""
        return self.mean - self.half_width if self.statistic is None else self.statistic.lower_bound

    @property
    def upper_bound(self) -> float:
        """The upper end of that interval, or of the statistic's."""
        if not self.returns:
            return -math.inf
        return self.mean + self.half_width if self.statistic is None else self.statistic.upper_bound

    @property
    def deterministic(self) -> bool:
        """Whether the environment's own statistic stands for all episodes."""
        return self.statistic is not None

    def repeated(self, seeds: tuple[int, ...]) -> EvaluationResult:
        """The first episode's result for all `seeds`, as each would play the same episode."""
        if not self.returns:
            return self
        count, cut = len(seeds), min(self.cut, 1) * len(seeds)
        return replace(
            self,
            returns=self.returns[:1] * count,
            lengths=self.lengths[:1] * count,
            seeds=seeds,
            cut=cut,
        )

    def __add__(self, other: EvaluationResult) -> EvaluationResult:
        """The sum of both results. Raises InvalidInput if the environment's own statistics
        differ."""
        if self.statistic != other.statistic and self.returns and other.returns:
            message = (
                f"evaluations of one policy have different statistics: {self.statistic} and "
                f"{other.statistic}"
            )
            raise InvalidInput(message)
        sums: Any = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        first_break = self.first_break or other.first_break
        statistic = self.statistic or other.statistic
        return EvaluationResult(**sums, first_break=first_break, statistic=statistic)


def result_to_json(result: EvaluationResult) -> dict[str, Any]:
    """The result as stored in a checkpoint's metadata under "evaluation"."""
    return {"episodes": result.episodes, **numbers(result)}


def result_from_json(value: Mapping[str, Any]) -> EvaluationResult:
    """The inverse of `result_to_json`. Raises InvalidInput for anything else."""
    try:
        returns = tuple(float(number) for number in value["returns"])
        statistic = None
        if value.get("deterministic", False):  # absent where an earlier version wrote it
            further = {str(name): float(number) for name, number in value["statistics"].items()}
            mean, lower, upper = (
                float(value[name]) for name in ("mean", "lower_bound", "upper_bound")
            )
            statistic = EpisodeStatistic(mean, lower, upper, further)
        lengths, seeds = tuple(map(int, value["lengths"])), tuple(map(int, value["seeds"]))
        # absent where an earlier version wrote it
        counts: Any = {own: kind(value.get(name, kind())) for own, (name, kind) in _COUNTS.items()}
        return EvaluationResult(returns, lengths, seeds, statistic=statistic, **counts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"not a stored evaluation: {error!r}", reason="BAD_EVALUATION"
        ) from error


def numbers(result: EvaluationResult) -> dict[str, Any]:
    """By the names of an Evaluation. The interval of a single episode is unbounded; both bounds are
    then its return. Without an episode, mean and bounds are 0."""
    mean = result.mean if result.returns else 0.0
    has_bounds = result.deterministic or math.isfinite(result.half_width)
    return {
        "returns": list(result.returns),
        "lengths": list(result.lengths),
        "seeds": list(result.seeds),
        "mean": mean,
        "standard_deviation": result.std,
        "lower_bound": result.lower_bound if has_bounds else mean,
        "upper_bound": result.upper_bound if has_bounds else mean,
        "deterministic": result.deterministic,
        "statistics": {} if result.statistic is None else dict(result.statistic.statistics),
        **{name: getattr(result, own) for own, (name, _) in _COUNTS.items()},
    }
