"""The updater: by which number candidates are ranked, and whether one enters the board."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from podracer_leaderboard.ranking import Admission, Entry, admit
from podracer_leaderboard.rules import Rules

ENTRY_POINT_GROUP = "podracer.updaters"


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """What an evaluation says: the mean return and the two-sided 95 % interval of it."""

    mean: float
    lower_bound: float
    upper_bound: float
    episodes: int

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.lower_bound)


class Updater(ABC):
    """Decides which candidates are on the board. Packages offer their own as entry points `podracer.updaters`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    @abstractmethod
    def score(self, evaluation: EvaluationSummary) -> float:
        """The number that candidates are admitted and ranked by, larger is better. `evaluation` is finite."""

    def rung_score(self, evaluation: EvaluationSummary) -> float:
        """The number that agents of a rung are compared by, where some had more episodes than others."""
        return self.score(evaluation)

    def admit(self, entries: Iterable[Entry], candidate: Entry) -> Admission:
        """Whether and where `candidate` enters."""
        return admit(entries, candidate, self.rules.leaderboard_size, self.rules.lineage_limit)


class LowerBoundUpdater(Updater):
    """The lower end of the interval: a lucky mean over few episodes does not count as much as a sure one. Within a rung
    the mean, since a bound would push those further down that got the fewest episodes for being at the bottom."""

    def score(self, evaluation: EvaluationSummary) -> float:
        return evaluation.lower_bound

    def rung_score(self, evaluation: EvaluationSummary) -> float:
        return evaluation.mean


class MeanUpdater(Updater):
    """The mean, for jobs whose objective asks for it."""

    def score(self, evaluation: EvaluationSummary) -> float:
        return evaluation.mean
