"""Selects the best snapshots of a round: screening during training, full evaluations, the
target."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.errors import DeadlineExpired
from podracer_core.evaluate import EvaluationResult
from podracer_core.random_numbers import ADMISSION, COMPARISON, CONFIRMATION
from podracer_core.statistics import EXCESS_LEVEL, excess_probability
from podracer_core.training.evaluation_backend import EvaluationAnswer, EvaluationBackend
from podracer_core.training.evaluation_costs import EvaluationCosts
from podracer_core.training.evaluation_orders import EvaluationOrders, Full, Look
from podracer_core.training.plan import RoundPlan
from podracer_core.training.snapshots import (
    Contender,
    Contenders,
    Judgement,
    Moment,
    Snapshot,
    take_snapshot,
)

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_SILENCE_S = 600.0
_PAUSE_S = 1.0
_LATE_S, _LATE_PART = 1.0, 0.05
"""A round waits for evaluations elsewhere after its end: seconds, or a part of it if longer."""


class Selection:
    """Looks at all members with a few episodes, keeps each one's best snapshots, and evaluates the
    best in full.

    The best of many looks is the luckiest, so at the end fresh episodes choose among the three best
    and the last state. A member whose look passes the target is evaluated in full at once, with
    fresh episodes and alone.

    If training continues meanwhile, the last evaluations are ordered early enough to be known at
    the end of the round. Evaluations that the fraction does not pay for, or that come too late, are
    left out: those members are ranked by their looks.

    costs        of evaluations so far, and to come
    confirmed    the judgement that passed the target
    broken       episodes of each member's evaluations that broke, of those `played`
    first_break  the first of them; empty if none broke
    """

    def __init__(
        self,
        algorithm: Algorithm,
        backend: EvaluationBackend,
        plan: RoundPlan,
        now: Callable[[], Moment],
        first_cost_s: Callable[[], float],
        base_env_steps: Sequence[int],
        interrupted: Callable[[], bool] = lambda: False,
        returns: Callable[[], Sequence[float]] = lambda: (),
        ends_at_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`now` returns the current moment of the round; `first_cost_s` estimates the cost of the
        first look; `base_env_steps`: each member's before the round; `interrupted` makes `conclude`
        stop waiting; `returns`: of each member's last training episodes; `ends_at_s`: the end of
        the round, infinite if it is not limited."""
        self._algorithm, self._backend, self._plan = algorithm, backend, plan
        self._now, self._interrupted, self._returns = now, interrupted, returns
        self._orders = EvaluationOrders(algorithm, backend, plan.seed, base_env_steps, self._take)
        self.costs = EvaluationCosts(plan, algorithm.members, backend, first_cost_s)
        self._passed: list[Snapshot] = []  # passed the target in the last look, the best one last
        self._contenders = Contenders()
        self._concluding = False
        self._to_come = deque([self._last_look, self._order_comparisons, self._order_candidates])
        self._ends_at_s = ends_at_s
        self._candidates: dict[int, Judgement] = {}
        self._first_mean: float | None = None
        self._promising = False
        self._tests = 0  # of the target
        self._challenged_at = 0.0  # when a full evaluation was last asked for because of the target
        # at the end of the round: when the backend was there, and said something
        self._seen_at = self._heard_at = 0.0
        self._news: list[Judgement] = []
        self._lowest = plan.lowest_return
        self.broken = [0] * algorithm.members
        self.played = [0] * algorithm.members
        self.first_break = ""
        self.confirmed: Judgement | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of processors, or of the GPU, that evaluation has taken."""
        return self.costs.schedule.spent_s

    @property
    def candidates(self) -> dict[int, Judgement]:
        """Every member's best full evaluation so far, or the look at its best snapshot."""
        return self._contenders.looks | self._candidates

    @property
    def kept(self) -> list[Judgement]:
        """All snapshots that are candidates, or may become one."""
        return [*self._contenders.all_looks, *self._candidates.values()]

    @property
    def is_concluding(self) -> bool:
        """Whether the round's last look has been taken."""
        return self._concluding

    @property
    def closing_cost_s(self) -> float:
        """The cost of the round's last evaluations that are not ordered yet."""
        if self._concluding or self.confirmed is not None:
            return 0.0
        return self.costs.closing_s(self._now())

    @property
    def closing_s(self) -> float:
        """The wall seconds of these."""
        return self.closing_cost_s * self.costs.pace

    def counted(self, result: EvaluationResult) -> EvaluationResult:
        """The result that ranks and reaches targets: with a return for each broken episode."""
        return result.counted(self._lowest)

    def breaks_more(self, member: int) -> bool:
        """Whether more of the member's episodes have broken than of the others', by Fisher's exact
        test at 1 %. Such a member may gain by it: it reaches no target, and comes after the
        others."""
        broken, played = self.broken[member], self.played[member]
        others = sum(self.broken) - broken, sum(self.played) - played
        return broken > 0 and excess_probability(broken, played, *others) < EXCESS_LEVEL

    @property
    def has_judged(self) -> bool:
        """Whether a look has been answered."""
        return self._first_mean is not None

    def admit_from(self, score: float | None) -> None:
        """Require this score of candidates from now on; None: the score required before."""
        if score not in (None, self._plan.admission_score):
            self._plan = replace(self._plan, admission_score=score)

    def take_news(self) -> list[Judgement]:
        """Judgements since the last call."""
        news, self._news = self._news, []
        return news

    def step(self, *, may_look: bool = True) -> bool:
        """Take answers after an update, and look if it is time. Returns whether it has looked
        now."""
        for answer in self._backend.poll(self._pause_s()):
            self._take(answer)
        if self._orders or self.confirmed is not None or not self._backend.ready:
            return False
        if self._concluding and self._contenders:
            self._go_on()
            return False
        if not may_look:
            return False
        now = self._now()
        if self._concluding or self._is_time_to_conclude(now):
            self._go_on()
            return True
        episodes = self.costs.look_episodes(now)
        if not self.costs.is_due(now, episodes, promising=self._promising):
            return False
        self._orders.look(self._now(), episodes)
        return True

    def conclude(self, timeout_s: float) -> None:
        """Conclude the round: a last look, fresh episodes of each member's kept snapshots, and a
        full evaluation of its best one, unless they are done already or the round has ended.
        Answers from elsewhere may be a little late.

        Raises DeadlineExpired if the backend is lost for `timeout_s`, or silent for ten minutes.
        """
        self._seen_at = self._heard_at = time.monotonic()
        while self._orders and not self._is_over:
            self._listen(timeout_s)
        while (self._to_come or self._orders) and not self._is_over:
            if self._orders or not self._backend.ready:
                self._listen(timeout_s)
            else:
                self._go_on()
        if self._orders:
            self._leave_out()

    @property
    def _is_over(self) -> bool:
        """Whether the wait is over: the target is reached, the pod is needed elsewhere, or time is
        up."""
        late_s = (
            0.0
            if self._backend.blocking
            else max(_LATE_S, _LATE_PART * (self._plan.duration_s or 0.0))
        )
        is_late = self._now().elapsed_s >= self._ends_at_s() + late_s
        return is_late or self.confirmed is not None or self._interrupted()

    def _leave_out(self) -> None:
        """Drop open orders. The backend was busy with them until now, or started environments for
        them."""
        if self.confirmed is None and not self._interrupted():
            text = "%d evaluations are late: ranking their members by earlier results"
            logger.info(text, len(self._orders))
        now = self._now()
        busy_s = max(0.0, now.elapsed_s - self._orders.busy_since_s) / self.costs.pace
        episodes = self._orders.abandon(self._plan)
        self.costs.schedule.record(
            now.used_s, min(busy_s, episodes * self.costs.episode_s), screening=False
        )

    def _is_time_to_conclude(self, now: Moment) -> bool:
        """Whether the last evaluations must be ordered now to be known at the end of the round. If
        training waits for them, the round ends earlier instead."""
        part = self.costs.part(now)
        if self._backend.blocking or not part:
            return False
        return now.elapsed_s * (1.0 - part) / part <= self.closing_s

    def _go_on(self) -> None:
        """Begin the next step at the end of the round, once no order is open."""
        while self._to_come and not (self._orders or self._is_over) and self._backend.ready:
            self._concluding = True
            self._to_come.popleft()()

    def _last_look(self) -> None:
        """A look at the current state, with half of the remaining seconds. If these do not pay for
        an episode of each member, and there was no look, the member of the best training return is
        a candidate."""
        left_s = self.costs.end_left_s(self._now())
        if (episodes := self.costs.paid_episodes(left_s / 2)) > 0:
            self._orders.look(self._now(), episodes)
        elif not self._contenders and bool(self._algorithm.active.any()):
            self._contenders.add(Contender(*self.best_trained(), None), last=True)

    def best_trained(self) -> tuple[float, Snapshot]:
        """The best training return of a member that has not diverged, and its state."""
        members = range(self._algorithm.members)
        returns = [value if value == value else -math.inf for value in self._returns()] or [
            -math.inf for _ in members
        ]
        active = self._algorithm.active.tolist()
        best = max(members, key=lambda each: (active[each], returns[each]))
        return returns[best], take_snapshot(self._algorithm, best, self._now())

    def _order_comparisons(self) -> None:
        """Order a look's number of fresh episodes for each member's contenders, the best member
        first, while the fraction pays for them and for all episodes of each candidate."""
        first = min(self._plan.screening_episodes, self._plan.episodes)
        episode_s = self.costs.measured_episode_s
        candidates_s = len(self._contenders) * self._plan.episodes * episode_s
        left_s = self.costs.end_left_s(self._now()) - candidates_s
        for contenders in self._contenders.by_member():
            left_s -= len(contenders) * first * episode_s
            if left_s < 0.0:
                return
            for contender in contenders if len(contenders) > 1 else []:
                self._evaluate(contender.snapshot, COMPARISON, first)

    def _order_candidates(self) -> None:
        """Order each member's best snapshot, the best of all first: with all episodes as long as
        the fraction pays for them, then with as many as a look has, as long as it pays for those;
        the first one in any case. A member that may have reached the target gets all of them,
        unless the first show that it has not."""
        news = [
            best
            for best, *_ in self._contenders.by_member()
            if (judged := self._candidates.get(best.snapshot.member)) is None
            or judged.snapshot is not best.snapshot
            # given up, since it has not the target
            or self.counted(judged.result).episodes < self._plan.episodes
        ]
        target, first = self._plan.target, min(self._plan.screening_episodes, self._plan.episodes)
        costs_s = [self.costs.episode_of_s(best.snapshot.member) for best in news]
        left_s = self.costs.end_left_s(self._now())
        rest_s = left_s - first * sum(costs_s)  # for what is beyond the first episodes of all
        for number, ((mean, snapshot, _), cost_s) in enumerate(zip(news, costs_s, strict=True)):
            if self._is_over:
                return
            known = self._candidates.get(snapshot.member)
            is_given_up = known is not None and known.snapshot is snapshot
            rest_s -= (self._plan.episodes - first) * cost_s
            if target is not None and mean >= target and not is_given_up:
                self._evaluate(snapshot, CONFIRMATION, self._plan.episodes)
                continue
            pays_for_all = rest_s >= 0.0 or (number == 0 and left_s >= self._plan.episodes * cost_s)
            episodes = self._plan.episodes if pays_for_all else first
            left_s -= episodes * cost_s
            if left_s >= 0.0 or number == 0:
                self._evaluate(snapshot, ADMISSION, episodes)

    def _listen(self, timeout_s: float) -> None:
        """Take answers that arrive soon. Raises DeadlineExpired once patience with the backend has
        ended."""
        for answer in self._backend.poll(min(_POLL_S, timeout_s)):
            self._take(answer)
            if answer.results:
                self._heard_at = time.monotonic()
        now = time.monotonic()
        self._seen_at = now if self._backend.ready else self._seen_at
        if now - self._seen_at > timeout_s or now - self._heard_at > _SILENCE_S:
            raise DeadlineExpired(
                "the evaluations at the end of the round did not arrive in time",
                reason="NO_EVALUATION",
            )

    def _pause_s(self) -> float:
        """Wait briefly for a member that may have just reached the target: training is probably
        over."""
        # there it would cost training time
        waits = self._orders.has_full and not self._backend.beside
        return max(self._challenged_at + _PAUSE_S - time.monotonic(), 0.0) if waits else 0.0

    def _evaluate(self, snapshot: Snapshot, purpose: int, episodes: int) -> None:
        self._orders.evaluate(self._now(), snapshot, purpose, episodes, self._plan)

    def _take(self, answer: EvaluationAnswer) -> None:
        asked, now = self._orders.claim(answer), self._now()
        if (
            self.candidates
            and self._backend.left_s() <= 0.0
            and any(result.cut for result in answer.results)
        ):
            # time has cut it: a part of an episode compares with no whole one
            answer = replace(answer, results=())
        if asked is not None:
            self.costs.schedule.record(
                now.used_s, answer.duration_s, screening=isinstance(asked, Look)
            )
        if isinstance(asked, Look) and answer.results:
            self.costs.note_look(answer, now.elapsed_s - self._orders.busy_since_s)
            self._take_look(asked, answer)
        elif isinstance(asked, Look) and self._concluding:
            self._to_come.appendleft(self._last_look)  # it was lost
        elif isinstance(asked, Full) and answer.results and asked.purpose == COMPARISON:
            self._note((asked.snapshot.member,), answer)
            self._contenders.rank_again(asked.snapshot, self.counted(answer.results[0]).mean)
        elif isinstance(asked, Full) and answer.results:
            self._take_full(asked.snapshot, answer)
        self._orders.busy_since_s = now.elapsed_s

    def _note(self, members: Iterable[int], answer: EvaluationAnswer) -> None:
        """Note the lowest return, and how many episodes have broken."""
        for member, result in zip(members, answer.results, strict=True):
            self._lowest = min((self._lowest, *result.returns))
            self.broken[member] += result.broken
            self.played[member] += result.episodes + result.broken
            self.first_break = self.first_break or result.first_break

    def _take_look(self, look: Look, answer: EvaluationAnswer) -> None:
        moment, now_s = look.moment, self._now().elapsed_s
        active = self._algorithm.active.tolist()
        passed: list[tuple[float, Snapshot]] = []
        self._note(range(len(answer.results)), answer)
        for member, result in enumerate(answer.results):
            mean = self.counted(result).mean
            passes = (
                self._plan.target is not None
                and mean >= self._plan.target
                and not self.breaks_more(member)
            )
            snapshot, is_kept = None, self._contenders.wants(member, mean, last=self._concluding)
            if active[member] and result.returns and (passes or is_kept):
                taken = look.snapshots
                snapshot = (
                    taken[member] if taken else take_snapshot(self._algorithm, member, moment)
                )
            where = member, moment.env_steps[member], moment.version, moment.elapsed_s
            judgement = Judgement(
                *where, "progress", result, now_s, answer.duration_s / len(answer.results), snapshot
            )
            self._news.append(judgement)
            if snapshot is not None and is_kept:
                self._contenders.add(Contender(mean, snapshot, judgement), last=self._concluding)
            if snapshot is not None and passes:
                passed.append((mean, snapshot))
        self._note_promise(max(self.counted(result).mean for result in answer.results))
        self._passed = [snapshot for _, snapshot in sorted(passed, key=lambda pair: pair[0])]
        self._challenge()

    def _take_full(self, snapshot: Snapshot, answer: EvaluationAnswer) -> None:
        self._note((snapshot.member,), answer)
        result = answer.results[0]
        where = snapshot.member, snapshot.env_steps, snapshot.version, snapshot.train_time_s
        judgement = Judgement(
            *where, "candidate", result, self._now().elapsed_s, answer.duration_s, snapshot
        )
        self._news.append(judgement)
        known = self._candidates.get(snapshot.member)
        counted = self.counted(result)
        if result.returns and (
            known is None
            or self._plan.score(counted) >= self._plan.score(self.counted(known.result))
        ):
            self._candidates[snapshot.member] = judgement
        self._tests += 1
        if (
            result.returns
            and self._plan.is_reached_by(counted, self._tests)
            and not self.breaks_more(snapshot.member)
        ):
            self.confirmed = judgement
        else:
            self._challenge(answer.duration_s)

    def _challenge(self, last_cost_s: float = 0.0) -> None:
        """Evaluate the next member that seems to have reached the target: the best always, others
        if there is time."""
        if self._passed and self.costs.schedule.allows(
            self._now().used_s, last_cost_s, credit=True
        ):
            self._challenged_at = time.monotonic()
            self._evaluate(self._passed.pop(), CONFIRMATION, self._plan.episodes)

    def _note_promise(self, best_mean: float) -> None:
        if self._first_mean is None and math.isfinite(best_mean):
            self._first_mean = best_mean
        if self._plan.target is not None and self._first_mean is not None:
            self._promising = best_mean >= self._plan.target - 0.5 * max(
                self._plan.target - self._first_mean, 0.0
            )
