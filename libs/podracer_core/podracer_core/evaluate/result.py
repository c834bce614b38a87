"""What an evaluation found, with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from podracer_core.environments.vec_environment import EpisodeStatistic
from podracer_core.errors import InvalidInput
from podracer_core.statistics.student_t import student_t_quantile

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One policy's episodes, in the order of their seeds.

    returns      undiscounted sums of raw rewards
    lengths      environment steps
    seeds        the keys that the episodes' random numbers came from; the same ones give the same returns again
    invalid      how many episodes ended because their world broke; they count with what they had
    statistic    the environment's own, where its episodes are all alike and it has one: mean and interval are its
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
        """How many."""
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
        """Of the two-sided 95 % Student-t interval of the mean return; infinite for one episode."""
        if self.episodes == 1:
            return math.inf
        quantile = student_t_quantile(0.5 + _CONFIDENCE / 2, self.episodes - 1)
        return quantile * self.std / math.sqrt(self.episodes)

    @property
    def lower_bound(self) -> float:
        """Of that interval, or of the statistic's."""
        return self.mean - self.half_width if self.statistic is None else self.statistic.lower_bound

    @property
    def upper_bound(self) -> float:
        """Of that interval, or of the statistic's."""
        return self.mean + self.half_width if self.statistic is None else self.statistic.upper_bound

    @property
    def deterministic(self) -> bool:
        """Whether the environment's own statistic stands for all episodes."""
        return self.statistic is not None

    def straddles(self, threshold: float) -> bool:
        """True while the interval cannot tell on which side of `threshold` the mean lies."""
        return self.lower_bound < threshold <= self.upper_bound

    def repeated(self, seeds: tuple[int, ...]) -> EvaluationResult:
        """The first episode's result as that of all `seeds`, which would play the same episode."""
        count, invalid = len(seeds), min(self.invalid, 1)
        return EvaluationResult(
            self.returns[:1] * count, self.lengths[:1] * count, seeds, invalid * count, self.statistic
        )

    def __add__(self, other: EvaluationResult) -> EvaluationResult:
        """Both together. Raises InvalidInput where the environment's own statistics differ, as no episode's do."""
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
