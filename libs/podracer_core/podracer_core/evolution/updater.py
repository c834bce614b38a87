"""The updater, which decides the candidates on the board: their rank, its size, one place an agent,
few a lineage."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from podracer_core.evolution.rules import Rules

ENTRY_POINT_GROUP = "podracer.updaters"


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """The summary of an evaluation: the mean return and its two-sided 95 % interval."""

    mean: float
    lower_bound: float
    upper_bound: float
    episodes: int

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.lower_bound)


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate: `score` decides, `mean` where scores are equal, then the earlier one (`order`).

    `confirmed`: the score is of a second evaluation, with fresh seeds. The first one selected the
    candidate, the best of many by noisy numbers, so it promises too much. `final`: its job ends
    with it. `excluded`: it stands behind all others, because its episodes break more often than
    theirs."""

    agent: str
    lineage: str
    score: float
    mean: float
    order: int
    confirmed: bool = False
    final: bool = False
    excluded: bool = False

    @property
    def standing(self) -> tuple[bool, float, float]:
        """Larger is better."""
        return not self.excluded, self.score, self.mean


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a candidate enters, at which rank (from 1; 0 where it does not), and the entries that
    leave for it."""

    rank: int
    reason: str
    removed: tuple[Entry, ...] = ()

    @property
    def is_admitted(self) -> bool:
        return self.rank > 0


class Updater(ABC):
    """Decides which candidates are on the board. Packages offer their own as entry points
    `podracer.updaters`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    @abstractmethod
    def score(self, evaluation: EvaluationSummary) -> float:
        """The number that candidates are admitted and ranked by, larger is better. `evaluation` is
        finite."""

    def rung_score(self, evaluation: EvaluationSummary) -> float:
        """The number that agents of a rung are compared by, where some had more episodes than
        others."""
        return self.score(evaluation)

    def admit(self, entries: Iterable[Entry], candidate: Entry) -> Admission:
        """Whether and where `candidate` enters."""
        return admit(entries, candidate, self.rules.leaderboard_size, self.rules.lineage_limit)


class LowerBoundUpdater(Updater):
    """The lower end of the interval: a lucky mean over few episodes does not count as much as a
    sure one. Within a rung the mean, since a bound would push those further down that got the
    fewest episodes for being at the bottom."""

    def score(self, evaluation: EvaluationSummary) -> float:
        return evaluation.lower_bound

    def rung_score(self, evaluation: EvaluationSummary) -> float:
        return evaluation.mean


class MeanUpdater(Updater):
    """The mean, for jobs whose objective asks for it."""

    def score(self, evaluation: EvaluationSummary) -> float:
        return evaluation.mean


def ranked(entries: Iterable[Entry]) -> list[Entry]:
    """Best first, of equal ones the earlier first; but the first place is that of the job's final,
    else the best confirmed one's, where there is one.

    Only that place asks for confirmation: a better score behind it is a claim on it.
    """
    board = _by_score(entries)
    champion = max(
        board, key=lambda entry: (not entry.excluded, entry.final, entry.confirmed), default=None
    )
    if champion is None or not champion.confirmed:
        return board
    return [champion, *(entry for entry in board if entry is not champion)]


def claims_first(entries: Iterable[Entry], candidate: Entry) -> bool:
    """Whether `candidate` would be first among `entries`, itself included or not, if it were
    confirmed as it is."""
    others = [entry for entry in entries if entry.agent != candidate.agent]
    is_claim = not candidate.confirmed and not candidate.excluded
    return is_claim and _by_score([*others, candidate])[0] is candidate


def admit(entries: Iterable[Entry], candidate: Entry, size: int, lineage_limit: int) -> Admission:
    """Whether `candidate` enters a board of `size` places of which one lineage holds at most
    `lineage_limit`.

    It replaces its own agent's older entry, else the worst of its lineage where that has its limit,
    else the worst of a full board; each only by being strictly better. In a tie the present entry
    stays. The first gives way only where there is no other to do so, whatever its score."""
    board = ranked(entries)
    own = [entry for entry in board if entry.agent == candidate.agent]
    kin = [entry for entry in board if entry.lineage == candidate.lineage]
    if own:
        rival, place = own[0], "its own earlier candidate"
    elif len(kin) >= lineage_limit:
        rival, place = kin[-1], f"the worst of its lineage, which has its {lineage_limit} places"
    elif len(board) >= size:
        rival, place = board[-1], "the worst of a full board"
    else:
        return Admission(_rank(board, candidate), "there was room")
    comparison = f"{candidate.score:.6g} against {rival.score:.6g} of {place}"
    if candidate.standing <= rival.standing:
        return Admission(0, f"not better: {comparison}")
    left = [entry for entry in board if entry is not rival]
    return Admission(_rank(left, candidate), f"better: {comparison}", (rival,))


def admission_score(entries: Iterable[Entry], size: int) -> float | None:
    """The score that a new agent's candidate has to exceed to enter; None while there is room."""
    board = ranked(entries)
    return board[-1].score if len(board) >= size and not board[-1].excluded else None


def _by_score(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(
        entries, key=lambda entry: (entry.excluded, -entry.score, -entry.mean, entry.order)
    )


def _rank(board: list[Entry], candidate: Entry) -> int:
    return ranked([*board, candidate]).index(candidate) + 1
