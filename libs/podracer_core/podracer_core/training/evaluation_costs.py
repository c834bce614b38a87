"""The right time to evaluate: the costs of a round's evaluations, and their share of the round."""

from __future__ import annotations

import math
from collections.abc import Callable

from podracer_core.training.evaluation_backend import EvaluationAnswer, EvaluationBackend
from podracer_core.training.plan import RoundPlan
from podracer_core.training.snapshots import Moment

CREDIT_S = 5.0
# what a round ends with costs about as much: a last look, and each member's best in full
_LOOKS_AT_THE_END = 2

_KNOWN_PART = 0.02  # of a round; after it the use of the whole round can be extrapolated
_MOST_PACE = 5.0  # what takes longer than so was not evaluating, but starting environments
# a look in the middle of a round takes at most such a part of what evaluation may take
_LOOK_PART = 4
_LOOK_S = 1.5  # of a look beside training


class EvaluationSchedule:
    """Limits evaluation to `fraction` of what a round uses, and spends it where it matters.

    Use is in seconds of processors, evaluation included, or in seconds of the GPU if there is one.
    `round_s` is what the whole round is expected to use.

    A round begins with a credit for the first look and, with a target, for more looks: a lucky
    policy comes and goes within a few updates. If the round's length is known, the fraction holds
    at its end: the cost of the last evaluations is reserved. The fraction also holds if training
    continues meanwhile (not `blocking`): evaluation takes a core from it. Looks `beside` training
    take nothing from it, and are no part of the fraction."""

    beside: bool = False

    def __init__(
        self, fraction: float, round_s: float | None = None, *, hunting: bool, blocking: bool = True
    ) -> None:
        self._fraction = fraction
        self.round_s, self._hunting, self._blocking = round_s, hunting, blocking
        self._has_looked = False
        self._last_end_s = 0.0
        self.spent_s = 0.0

    def is_due(self, used_s: float, cost_s: float, *, promising: bool, whole: float = 1.0) -> bool:
        """Whether to look now, at a cost of `cost_s`. `promising`: the last look was close to the
        target; `whole`: the cost of a look with all episodes, as a multiple of `cost_s`."""
        if self.beside:
            return promising or used_s - self._last_end_s >= cost_s
        if not self._has_looked or not self._hunting:
            return self._leaves_the_end(used_s, cost_s, whole, credit=not self._has_looked)
        pause_s = cost_s * (0 if not self._blocking else 1 if promising else 2)
        rested = used_s - self._last_end_s >= pause_s
        return rested and self._leaves_the_end(used_s, cost_s, whole)

    def allows(self, used_s: float, cost_s: float, *, credit: bool = False) -> bool:
        """Whether `cost_s` seconds more stay within the fraction."""
        return cost_s <= self.left_s(used_s, credit=credit)

    def left_s(self, used_s: float, *, credit: bool = True) -> float:
        """The remaining seconds of the fraction; negative if more was spent."""
        base_s = used_s + (CREDIT_S if credit else 0.0)
        if credit and self.round_s is not None:
            base_s = max(used_s, min(base_s, self.round_s))
        return self._fraction * base_s - self.spent_s

    @property
    def end_left_s(self) -> float | None:
        """The remaining seconds for the end of a round of known length; negative if more was
        spent."""
        return None if self.round_s is None else self._fraction * self.round_s - self.spent_s

    def _leaves_the_end(
        self, used_s: float, cost_s: float, whole: float, *, credit: bool = True
    ) -> bool:
        """Whether a look of `cost_s` seconds stays within the fraction and leaves the cost of the
        round's end, at most half of the fraction."""
        end_s = 0.0
        if self.round_s is not None:
            end_s = _LOOKS_AT_THE_END * whole * cost_s
            end_s = end_s if whole == 1.0 else min(end_s, 0.5 * self._fraction * self.round_s)
        return self.allows(used_s, cost_s + end_s, credit=credit)

    def record(self, used_s: float, cost_s: float, *, screening: bool) -> None:
        """An evaluation of `cost_s` seconds has just ended."""
        self.spent_s += 0.0 if self.beside and screening else cost_s
        if screening:
            self._has_looked, self._last_end_s = True, used_s


class EvaluationCosts:
    """Costs are seconds of processors, or of the GPU.

    schedule             decides when a look is due, and counts the cost
    measured_episode_s   the cost of an episode of the last look; 0 before the first
    pace                 wall seconds per second of cost
    """

    def __init__(
        self,
        plan: RoundPlan,
        members: int,
        backend: EvaluationBackend,
        first_cost_s: Callable[[], float],
    ) -> None:
        """`first_cost_s` estimates the cost of the first look."""
        self._plan = plan
        self._members = members
        self._backend = backend
        self._first_cost_s = first_cost_s
        self.schedule = EvaluationSchedule(
            plan.evaluation_fraction,
            plan.duration_s,
            hunting=plan.target is not None,
            blocking=backend.blocking,
        )
        self.schedule.beside = backend.beside
        self.measured_episode_s, self.pace, self._training_pace = 0.0, 1.0, 1.0
        # how many times as long each member's are as the mean; 1 at least
        self._lengths: dict[int, float] = {}

    @property
    def episode_s(self) -> float:
        """The cost of an episode."""
        return (
            self.measured_episode_s
            or self._first_cost_s() / self._members / self._plan.screening_episodes
        )

    def episode_of_s(self, member: int) -> float:
        """The cost of an episode of this member."""
        return self.episode_s * self._lengths.get(member, 1.0)

    def note_look(self, answer: EvaluationAnswer, elapsed_s: float) -> None:
        """Note that a look was answered after `elapsed_s`."""
        self.measured_episode_s = answer.duration_s / sum(
            result.episodes + result.broken for result in answer.results
        )
        means = [sum(result.lengths) / max(result.episodes, 1) for result in answer.results]
        usual = max(1.0, sum(means) / len(means))
        self._lengths = {member: max(1.0, mean / usual) for member, mean in enumerate(means)}
        if answer.duration_s > 0.0:
            most = max(_MOST_PACE, self._training_pace)
            self.pace = min(max(elapsed_s / answer.duration_s, 0.01), most)

    def note_pace(self, pace: float) -> None:
        """Note the pace of training: that of evaluation before the first look."""
        self._training_pace = pace
        if not self.measured_episode_s:
            self.pace = max(1.0, pace)

    def part(self, now: Moment) -> float:
        """The elapsed part of the round; 0 if its length is unknown."""
        return self._plan.part(now.elapsed_s, max(now.env_steps), now.used_s)

    def is_due(self, now: Moment, episodes: int, *, promising: bool) -> bool:
        """Whether to look now, with this many episodes of each member."""
        self.schedule.round_s = self._whole_use_s(now)
        cost_s = episodes * self.episode_s * self._members
        whole = self._plan.screening_episodes / episodes
        return self.schedule.is_due(now.used_s, cost_s, promising=promising, whole=whole)

    def end_left_s(self, now: Moment) -> float:
        """The seconds that the fraction leaves for the end of the round."""
        self.schedule.round_s = self._whole_use_s(now)
        left_s = self.schedule.end_left_s
        return self.schedule.left_s(now.used_s) if left_s is None else left_s

    def closing_s(self, now: Moment) -> float:
        """The cost of the last evaluations of the round."""
        whole = self._members * (self._plan.screening_episodes + self._plan.episodes)
        return max(0.0, min(self.end_left_s(now), whole * self.episode_s))

    def look_episodes(self, now: Moment) -> int:
        """The episodes of each member in a look during the round."""
        if self._backend.beside:
            return self.paid_episodes(_LOOK_S, at_least=1) if self.measured_episode_s else 1
        whole_s = self._whole_use_s(now)
        if whole_s is None:
            return self._plan.screening_episodes
        return self.paid_episodes(self._plan.evaluation_fraction * whole_s / _LOOK_PART, at_least=1)

    def paid_episodes(self, seconds: float, at_least: int = 0) -> int:
        """The episodes of each member that `seconds` pay for, at most a whole look's."""
        cost_s = self.episode_s * self._members
        paid = seconds / cost_s if cost_s > 0.0 else math.inf
        most = self._plan.screening_episodes
        # in no more environments than a candidate: starting others would take seconds
        if not self._backend.blocking:
            most = max(1, min(most, self._plan.episodes // self._members))
        return int(max(at_least, min(paid, most)))

    def _whole_use_s(self, now: Moment) -> float | None:
        """The expected use of the whole round; None if its length is unknown."""
        part = self.part(now)
        whole_s = now.used_s / min(part, 1.0) if part >= _KNOWN_PART else self._plan.duration_s
        if whole_s is None or self._plan.duration_s is not None:
            return whole_s
        return max(whole_s, now.used_s + CREDIT_S)
