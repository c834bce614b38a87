"""The evaluation of a round's members: from the budget and the known results to the next orders.

Costs are seconds of processors, or of the GPU if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from podracer_core.random_numbers import ADMISSION, COMPARISON, CONFIRMATION
from podracer_core.training.evaluation_backend import EvaluationAnswer
from podracer_core.training.member_states import Contender, Moment, Snapshot
from podracer_core.training.plan import RoundPlan

CREDIT_S = 5.0
_LOOKS_AT_THE_END = (
    2  # what a round ends with costs about as much: a last look, and each member's best in full
)

_KNOWN_PART = 0.02  # of a round; after it the use of the whole round can be extrapolated
_MOST_PACE = 5.0  # what takes longer than so was not evaluating, but starting environments
_LOOK_PART = (
    4  # a look in the middle of a round takes at most such a part of what evaluation may take
)
_LOOK_S = 1.5  # of a look beside training


@dataclass(frozen=True, slots=True)
class Budget:
    """What a round uses, and the `fraction` of it that evaluation may take.

    used_s       so far, evaluation included
    round_s      expected of the whole round; None if its length is unknown
    spent_s      on evaluation so far; looks beside training are no part of it
    looked_at_s  used_s at the end of the last look; None before the first
    episode_s    the cost of an episode of the last look, or an estimate
    is_measured  whether it is no estimate
    lengths      how many times as long each member's episodes are as the mean; 1 at least
    """

    fraction: float
    used_s: float
    round_s: float | None = None
    spent_s: float = 0.0
    looked_at_s: float | None = None
    episode_s: float = 0.0
    is_measured: bool = False
    lengths: Mapping[int, float] | None = None

    def left_s(self, *, credit: bool) -> float:
        """The remaining seconds of the fraction of what is used so far, or with `credit` is soon;
        negative if more was spent."""
        base_s = self.used_s + (CREDIT_S if credit else 0.0)
        if credit and self.round_s is not None:
            base_s = max(self.used_s, min(base_s, self.round_s))
        return self.fraction * base_s - self.spent_s

    @property
    def end_left_s(self) -> float:
        """The seconds that the fraction leaves for the end of the round; negative if more was
        spent."""
        if self.round_s is None:
            return self.left_s(credit=True)
        return self.fraction * self.round_s - self.spent_s

    def episode_of_s(self, member: int) -> float:
        """The cost of an episode of this member."""
        return self.episode_s * (self.lengths or {}).get(member, 1.0)


class EvaluationCosts:
    """Measures what evaluation costs.

    spent_s  so far; looks `beside` training take nothing from it, and do not count
    pace     wall seconds per second of cost
    """

    def __init__(
        self, plan: RoundPlan, members: int, first_cost_s: Callable[[], float], *, beside: bool
    ) -> None:
        """`first_cost_s` estimates the cost of the first look."""
        self._plan, self._members = plan, members
        self._first_cost_s, self._beside = first_cost_s, beside
        self.spent_s = 0.0
        self.pace = self._training_pace = 1.0
        self._round_s = plan.duration_s
        self._looked_at_s: float | None = None
        self._episode_s = 0.0  # of the last look; 0 before the first
        self._lengths: dict[int, float] = {}

    def budget(self, now: Moment) -> Budget:
        """The budget now."""
        self._round_s = self._whole_use_s(now)
        plan = self._plan
        episode_s = (
            self._episode_s or self._first_cost_s() / self._members / plan.screening_episodes
        )
        return Budget(
            plan.evaluation_fraction,
            now.used_s,
            self._round_s,
            self.spent_s,
            self._looked_at_s,
            episode_s,
            self._episode_s > 0.0,
            self._lengths,
        )

    def allows(self, used_s: float, cost_s: float) -> bool:
        """Whether `cost_s` more stay within the fraction, by the last `budget`'s round."""
        fraction = self._plan.evaluation_fraction
        return cost_s <= Budget(fraction, used_s, self._round_s, self.spent_s).left_s(credit=True)

    def part(self, now: Moment) -> float:
        """The elapsed part of the round; 0 if its length is unknown."""
        return self._plan.part(now.elapsed_s, max(now.env_steps), now.used_s)

    def record(self, used_s: float, cost_s: float, *, screening: bool) -> None:
        """An evaluation of `cost_s` seconds has just ended."""
        self.spent_s += 0.0 if self._beside and screening else cost_s
        if screening:
            self._looked_at_s = used_s

    def note_look(self, answer: EvaluationAnswer, elapsed_s: float) -> None:
        """Note that a look was answered after `elapsed_s`."""
        episodes = sum(result.episodes + result.broken for result in answer.results)
        self._episode_s = answer.duration_s / episodes
        means = [sum(result.lengths) / max(result.episodes, 1) for result in answer.results]
        usual = max(1.0, sum(means) / len(means))
        self._lengths = {member: max(1.0, mean / usual) for member, mean in enumerate(means)}
        if answer.duration_s > 0.0:
            most = max(_MOST_PACE, self._training_pace)
            self.pace = min(max(elapsed_s / answer.duration_s, 0.01), most)

    def note_pace(self, pace: float) -> None:
        """Note the pace of training: that of evaluation before the first look."""
        self._training_pace = pace
        if not self._episode_s:
            self.pace = max(1.0, pace)

    def _whole_use_s(self, now: Moment) -> float | None:
        """The expected use of the whole round; None if its length is unknown."""
        part, duration_s = self.part(now), self._plan.duration_s
        whole_s = now.used_s / min(part, 1.0) if part >= _KNOWN_PART else duration_s
        if whole_s is None or duration_s is not None:
            return whole_s
        return max(whole_s, now.used_s + CREDIT_S)


class Wanted(NamedTuple):
    """Fresh episodes of a snapshot for a purpose."""

    snapshot: Snapshot
    purpose: int
    episodes: int


@dataclass(frozen=True, slots=True)
class EvaluationPolicy:
    """Limits evaluation to a fraction of what a round uses, and spends it where it matters.

    A round begins with a credit for the first look and, with a target, for more looks: a lucky
    policy comes and goes within a few updates. If the round's length is known, the fraction holds
    at its end: the cost of the last evaluations is reserved. The fraction also holds if training
    continues meanwhile (not `blocking`): evaluation takes a core from it. Looks `beside` training
    take nothing from it, and are no part of the fraction."""

    plan: RoundPlan
    members: int
    blocking: bool = True
    beside: bool = False

    @property
    def first_episodes(self) -> int:
        """Episodes of a snapshot that are worth as much as a look."""
        return min(self.plan.screening_episodes, self.plan.episodes)

    def look(self, budget: Budget, *, promising: bool) -> int:
        """Episodes of each member in a look now; 0: no look yet. `promising`: the last one was
        close to the target."""
        episodes = self._look_episodes(budget)
        cost_s = episodes * budget.episode_s * self.members
        rested_s = budget.used_s - (budget.looked_at_s or 0.0)
        if self.beside:
            return episodes if promising or rested_s >= cost_s else 0
        is_first, hunting = budget.looked_at_s is None, self.plan.target is not None
        if hunting and not is_first:
            pauses = 0 if not self.blocking else 1 if promising else 2
            if rested_s < pauses * cost_s:
                return 0
        reserved_s = self._reserved_s(budget, cost_s, self.plan.screening_episodes / episodes)
        affordable_s = budget.left_s(credit=hunting or is_first)
        return episodes if cost_s + reserved_s <= affordable_s else 0

    def is_promising(self, first_mean: float | None, last_mean: float) -> bool:
        """Whether the last look was at most half as far from the target as the first, by their best
        means."""
        target = self.plan.target
        if target is None or first_mean is None:
            return False
        return last_mean >= target - 0.5 * max(target - first_mean, 0.0)

    def closing_s(self, budget: Budget) -> float:
        """The cost of the last evaluations of the round."""
        whole = self.members * (self.plan.screening_episodes + self.plan.episodes)
        return max(0.0, min(budget.end_left_s, whole * budget.episode_s))

    def last_look(self, budget: Budget) -> int:
        """Episodes of each member in the last look: for half of the remaining seconds. May be 0."""
        return self._paid_episodes(budget, budget.end_left_s / 2)

    def comparisons(self, budget: Budget, ranked: Sequence[Sequence[Contender]]) -> list[Wanted]:
        """A look's number of fresh episodes for each member's contenders, in their order, while the
        fraction pays for them and for all episodes of each candidate."""
        episode_s = budget.episode_s if budget.is_measured else 0.0
        left_s = budget.end_left_s - len(ranked) * self.plan.episodes * episode_s
        wanted: list[Wanted] = []
        for contenders in ranked:
            left_s -= len(contenders) * self.first_episodes * episode_s
            if left_s < 0.0:
                break
            if len(contenders) > 1:
                wanted += [
                    Wanted(one.snapshot, COMPARISON, self.first_episodes) for one in contenders
                ]
        return wanted

    def candidates(
        self, budget: Budget, best: Sequence[Contender], is_judged: Callable[[Snapshot], bool]
    ) -> Iterator[Wanted]:
        """Full evaluations of members' `best` snapshots, in their order: with all episodes as long
        as the fraction pays for them, then with as many as a look has, as long as it pays for
        those; the first one in any case.

        One that may have reached the target gets all of them, unless an evaluation has shown that
        it has not (`is_judged`, which is asked only when it is its turn)."""
        plan, first = self.plan, self.first_episodes
        costs_s = [budget.episode_of_s(one.snapshot.member) for one in best]
        left_s = budget.end_left_s
        rest_s = left_s - first * sum(costs_s)  # for what is beyond the first episodes of all
        for number, ((mean, snapshot, _), cost_s) in enumerate(zip(best, costs_s, strict=True)):
            rest_s -= (plan.episodes - first) * cost_s
            if plan.target is not None and mean >= plan.target and not is_judged(snapshot):
                yield Wanted(snapshot, CONFIRMATION, plan.episodes)
                continue
            pays_for_all = rest_s >= 0.0 or (number == 0 and left_s >= plan.episodes * cost_s)
            episodes = plan.episodes if pays_for_all else first
            left_s -= episodes * cost_s
            if left_s >= 0.0 or number == 0:
                yield Wanted(snapshot, ADMISSION, episodes)

    def _look_episodes(self, budget: Budget) -> int:
        """The episodes of each member in a look during the round."""
        if self.beside:
            return self._paid_episodes(budget, _LOOK_S, at_least=1) if budget.is_measured else 1
        if budget.round_s is None:
            return self.plan.screening_episodes
        seconds = budget.fraction * budget.round_s / _LOOK_PART
        return self._paid_episodes(budget, seconds, at_least=1)

    def _reserved_s(self, budget: Budget, cost_s: float, whole: float) -> float:
        """The cost of the round's end beside a look of `cost_s`, at most half of the fraction.
        `whole`: the cost of a look with all episodes, as a multiple of `cost_s`."""
        if budget.round_s is None:
            return 0.0
        end_s = _LOOKS_AT_THE_END * whole * cost_s
        return end_s if whole == 1.0 else min(end_s, 0.5 * budget.fraction * budget.round_s)

    def _paid_episodes(self, budget: Budget, seconds: float, at_least: int = 0) -> int:
        """The episodes of each member that `seconds` pay for, at most a whole look's."""
        cost_s = budget.episode_s * self.members
        paid = seconds / cost_s if cost_s > 0.0 else math.inf
        most = self.plan.screening_episodes
        if (
            not self.blocking
        ):  # in no more environments than a candidate: starting others would take seconds
            most = max(1, min(most, self.plan.episodes // self.members))
        return int(max(at_least, min(paid, most)))
