"""Selects the best snapshots of a round: looks during training, full evaluations, the target."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from podracer_core.algorithms import Algorithm
from podracer_core.errors import DeadlineExpired
from podracer_core.evaluate import EvaluationResult
from podracer_core.random_numbers import (
    ADMISSION,
    COMPARISON,
    CONFIRMATION,
    SCREENING,
    derive_key,
    evaluation_seeds,
)
from podracer_core.statistics import EXCESS_LEVEL, excess_probability
from podracer_core.training.evaluation_backend import (
    EvaluationAnswer,
    EvaluationBackend,
    EvaluationOrder,
)
from podracer_core.training.evaluation_policy import EvaluationCosts, EvaluationPolicy, Wanted
from podracer_core.training.member_states import (
    Contender,
    Contenders,
    Judgement,
    Moment,
    Snapshot,
    take_snapshot,
)
from podracer_core.training.plan import RoundPlan

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_SILENCE_S = 600.0
_PAUSE_S = 1.0
_LATE_S, _LATE_PART = 1.0, 0.05
"""A round waits for evaluations elsewhere after its end: seconds, or a part of it if longer."""


class Phase(Enum):
    """A phase of a round's evaluations. Each begins once no order of the one before is open."""

    TRAINING = auto()
    """Looks, and full evaluations of members that may have reached the target."""
    LOST_LOOK = auto()
    """The last look was not answered."""
    LAST_LOOK = auto()
    COMPARISONS = auto()
    """Fresh episodes of all contenders choose each member's best."""
    CANDIDATES = auto()
    """Full evaluations of each member's best."""


_NEXT = {
    Phase.TRAINING: Phase.LAST_LOOK,
    Phase.LOST_LOOK: Phase.LAST_LOOK,
    Phase.LAST_LOOK: Phase.COMPARISONS,
    Phase.COMPARISONS: Phase.CANDIDATES,
}


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a selection asks about its round.

    now             the current moment
    first_cost_s    an estimate of the cost of the first look
    base_env_steps  each member's before the round
    interrupted     makes `conclude` stop waiting
    returns         of each member's last training episodes
    ends_at_s       the end of the round, infinite if it is not limited
    """

    now: Callable[[], Moment]
    first_cost_s: Callable[[], float]
    base_env_steps: Sequence[int]
    interrupted: Callable[[], bool] = lambda: False
    returns: Callable[[], Sequence[float]] = lambda: ()
    ends_at_s: Callable[[], float] = lambda: math.inf


@dataclass(frozen=True, slots=True)
class _Asked:
    """An open order. `snapshots`: the evaluated ones; of a look, all members as they were then."""

    purpose: int
    moment: Moment
    snapshots: list[Snapshot]


class EpisodeBreaks:
    """The broken episodes of a round's evaluations.

    broken  of each member, of those `played`
    first   the first of them; empty if none broke
    """

    def __init__(self, members: int, lowest_return: float) -> None:
        """`lowest_return`: of the job's intact episodes."""
        self.broken = [0] * members
        self.played = [0] * members
        self.first = ""
        self._lowest = lowest_return

    def note(self, members: Iterable[int], results: Iterable[EvaluationResult]) -> None:
        """Note the results of these members, and their lowest return."""
        for member, result in zip(members, results, strict=True):
            self._lowest = min((self._lowest, *result.returns))
            self.broken[member] += result.broken
            self.played[member] += result.episodes + result.broken
            self.first = self.first or result.first_break

    def counted(self, result: EvaluationResult) -> EvaluationResult:
        """The result that ranks and reaches targets: with a return for each broken episode."""
        return result.counted(self._lowest)

    def exceed(self, member: int) -> bool:
        """Whether more of the member's episodes have broken than of the others', by Fisher's exact
        test at 1 %. Such a member may gain by it: it reaches no target, and comes after the
        others."""
        broken, played = self.broken[member], self.played[member]
        others = sum(self.broken) - broken, sum(self.played) - played
        return broken > 0 and excess_probability(broken, played, *others) < EXCESS_LEVEL


class Selection:
    """Looks at all members with a few episodes, keeps each one's best snapshots, and evaluates the
    best in full. An `EvaluationPolicy` decides when, and with how many episodes.

    The best of many looks is the luckiest, so at the end fresh episodes choose among the three best
    and the last state. A member whose look passes the target is evaluated in full at once, with
    fresh episodes and alone.

    If training continues meanwhile, the last evaluations are ordered early enough to be known at
    the end of the round. Evaluations that the fraction does not pay for, or that come too late, are
    left out: those members are ranked by their looks.

    costs      of evaluations so far
    breaks     episodes of evaluations that broke
    confirmed  the judgement that passed the target
    """

    def __init__(
        self, algorithm: Algorithm, backend: EvaluationBackend, plan: RoundPlan, view: RoundView
    ) -> None:
        members = algorithm.members
        self._algorithm, self._backend, self._view = algorithm, backend, view
        self._policy = EvaluationPolicy(plan, members, backend.blocking, backend.beside)
        self.costs = EvaluationCosts(plan, members, view.first_cost_s, beside=backend.beside)
        self.breaks = EpisodeBreaks(members, plan.lowest_return)
        self._phase = Phase.TRAINING
        self._order_ids = itertools.count(1)
        self._asked: dict[int, _Asked] = {}  # open orders by id: one look, or full evaluations
        self._busy_since_s = 0.0  # with them, in seconds of the round
        self._contenders = Contenders()
        self._first_mean: float | None = None  # the best of the first look
        self._last_mean = -math.inf
        self._passed: list[Snapshot] = []  # passed the target in the last look, the best one last
        self._tests = 0  # of the target
        self._challenged_at = 0.0  # when a full evaluation was last ordered because of the target
        self._news: list[Judgement] = []
        self.confirmed: Judgement | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of processors, or of the GPU, that evaluation has taken."""
        return self.costs.spent_s

    @property
    def candidates(self) -> dict[int, Judgement]:
        """Every member's best full evaluation so far, or the look at its best snapshot."""
        return self._contenders.candidates

    @property
    def kept(self) -> list[Judgement]:
        """All evaluations of snapshots that are candidates, or may become one."""
        return self._contenders.kept

    @property
    def is_concluding(self) -> bool:
        """Whether the round's last look has begun."""
        return self._phase is not Phase.TRAINING

    @property
    def closing_cost_s(self) -> float:
        """The cost of the round's last evaluations that are not ordered yet."""
        if self.is_concluding or self.confirmed is not None:
            return 0.0
        return self._policy.closing_s(self.costs.budget(self._view.now()))

    @property
    def closing_s(self) -> float:
        """The wall seconds of these."""
        return self.closing_cost_s * self.costs.pace

    @property
    def has_judged(self) -> bool:
        """Whether a look has been answered."""
        return self._first_mean is not None

    def admit_from(self, score: float | None) -> None:
        """Require this score of candidates from now on; None: the score required before."""
        plan = self._policy.plan
        if score not in (None, plan.admission_score):
            self._policy = replace(self._policy, plan=replace(plan, admission_score=score))

    def take_news(self) -> list[Judgement]:
        """Judgements since the last call."""
        news, self._news = self._news, []
        return news

    def best_trained(self) -> tuple[float, Snapshot]:
        """The best training return of a member that has not diverged, and its state."""
        members, active = range(self._algorithm.members), self._algorithm.active.tolist()
        returns = [-math.inf if math.isnan(value) else value for value in self._view.returns()]
        returns = returns or [-math.inf for _ in members]
        best = max(members, key=lambda member: (active[member], returns[member]))
        return returns[best], take_snapshot(self._algorithm, best, self._view.now())

    def step(self, *, may_look: bool = True) -> bool:
        """Take answers after an update, and look if it is time. Returns whether it has looked
        now."""
        for answer in self._backend.poll(self._pause_s()):
            self._take(answer)
        if self._asked or self.confirmed is not None or not self._backend.ready:
            return False
        if self.is_concluding and self._contenders:
            self._go_on()
            return False
        if not may_look:
            return False
        now = self._view.now()
        if self.is_concluding or self._is_time_to_conclude(now):
            self._go_on()
            return True
        promising = self._policy.is_promising(self._first_mean, self._last_mean)
        episodes = self._policy.look(self.costs.budget(now), promising=promising)
        if episodes:
            self._look(episodes)
        return episodes > 0

    def conclude(self, timeout_s: float) -> None:
        """Conclude the round: a last look, fresh episodes of each member's kept snapshots, and a
        full evaluation of its best one, unless they are done already or the round has ended.
        Answers from elsewhere may be a little late.

        Raises DeadlineExpired if the backend is lost for `timeout_s`, or silent for ten minutes.
        """
        seen_at = heard_at = time.monotonic()
        while (self._asked or self._phase in _NEXT) and not self._is_over:
            if not self._asked and self._backend.ready:
                self._go_on()
                continue
            for answer in self._backend.poll(min(_POLL_S, timeout_s)):
                self._take(answer)
                heard_at = time.monotonic() if answer.results else heard_at
            now = time.monotonic()
            seen_at = now if self._backend.ready else seen_at
            if now - seen_at > timeout_s or now - heard_at > _SILENCE_S:
                text = "the evaluations at the end of the round did not arrive in time"
                raise DeadlineExpired(text, reason="NO_EVALUATION")
        if self._asked:
            self._leave_out()

    @property
    def _is_over(self) -> bool:
        """Whether the wait is over: the target is reached, the pod is needed elsewhere, or time is
        up."""
        late_s = 0.0
        if not self._backend.blocking:
            late_s = max(_LATE_S, _LATE_PART * (self._policy.plan.duration_s or 0.0))
        is_late = self._view.now().elapsed_s >= self._view.ends_at_s() + late_s
        return is_late or self.confirmed is not None or self._view.interrupted()

    def _is_time_to_conclude(self, now: Moment) -> bool:
        """Whether the last evaluations must be ordered now to be known at the end of the round. If
        training waits for them, the round ends earlier instead."""
        part = self.costs.part(now)
        if self._backend.blocking or not part:
            return False
        return now.elapsed_s * (1.0 - part) / part <= self.closing_s

    def _pause_s(self) -> float:
        """Wait briefly for a member that may have just reached the target: training is probably
        over."""
        if not self._has_full or self._backend.beside:  # there it would cost training time
            return 0.0
        return max(self._challenged_at + _PAUSE_S - time.monotonic(), 0.0)

    @property
    def _has_full(self) -> bool:
        """Whether a full evaluation is open."""
        return any(asked.purpose != SCREENING for asked in self._asked.values())

    def _go_on(self) -> None:
        """Begin the next phases at the end of the round, until orders are open."""
        while self._phase in _NEXT and not (self._asked or self._is_over) and self._backend.ready:
            self._phase = _NEXT[self._phase]
            if self._phase is Phase.LAST_LOOK:
                self._look_last()
            elif self._phase is Phase.COMPARISONS:
                self._compare()
            else:
                self._evaluate_candidates()

    def _look_last(self) -> None:
        """A look at the current state. If the fraction does not pay for an episode of each member,
        and there was no look, the member of the best training return is a candidate."""
        episodes = self._policy.last_look(self.costs.budget(self._view.now()))
        if episodes:
            self._look(episodes)
        elif not self._contenders and bool(self._algorithm.active.any()):
            self._contenders.add(Contender(*self.best_trained(), None), last=True)

    def _compare(self) -> None:
        budget = self.costs.budget(self._view.now())
        for wanted in self._policy.comparisons(budget, self._contenders.by_member()):
            self._evaluate(wanted)

    def _evaluate_candidates(self) -> None:
        """Full evaluations of each member's best snapshot, the best of all first."""
        best = [
            own[0] for own in self._contenders.by_member() if not self._is_whole(own[0].snapshot)
        ]
        budget = self.costs.budget(self._view.now())
        for wanted in self._policy.candidates(budget, best, self._contenders.is_judged):
            if self._is_over:
                return
            self._evaluate(wanted)

    def _is_whole(self, snapshot: Snapshot) -> bool:
        """Whether all episodes of the snapshot are known: it was not given up for lacking the
        target."""
        if not self._contenders.is_judged(snapshot):
            return False
        result = self.breaks.counted(self._contenders.judged[snapshot.member].result)
        return result.episodes >= self._policy.plan.episodes

    def _challenge(self, last_cost_s: float = 0.0) -> None:
        """Evaluate the next member that seems to have reached the target: the best always, others
        if there is time."""
        if self._passed and self.costs.allows(self._view.now().used_s, last_cost_s):
            self._challenged_at = time.monotonic()
            self._evaluate(Wanted(self._passed.pop(), CONFIRMATION, self._policy.plan.episodes))

    def _look(self, episodes: int) -> None:
        """Order this many episodes of every member's current policy."""
        now, algorithm = self._view.now(), self._algorithm
        members = tuple(range(algorithm.members))
        self._busy_since_s = now.elapsed_s
        seeds = evaluation_seeds(self._fresh_seed(0, now.env_steps[0]), SCREENING, episodes)
        order = EvaluationOrder(
            next(self._order_ids), members, algorithm.actor, tuple(seeds), screening=True
        )
        asked = _Asked(SCREENING, now, [])
        self._submit(order, asked)
        if order.order_id in self._asked:  # training may continue before the answer
            asked.snapshots.extend(take_snapshot(algorithm, member, now) for member in members)

    def _evaluate(self, wanted: Wanted) -> None:
        """Order an evaluation. A candidate that may have reached the target, or that has to reach a
        score, first plays a look's number of episodes."""
        snapshot, purpose, episodes = wanted
        now, plan = self._view.now(), self._policy.plan
        if not self._has_full:
            self._busy_since_s = now.elapsed_s
        admission = plan.admission_score if purpose == ADMISSION else None
        required = plan.target if purpose == CONFIRMATION else None
        has_to_reach = admission is not None or required is not None
        at_once = purpose == COMPARISON or not (self._backend.blocking or has_to_reach)
        seed = self._fresh_seed(snapshot.member, snapshot.env_steps)
        order = EvaluationOrder(
            next(self._order_ids),
            (snapshot.member,),
            snapshot.actor,
            tuple(evaluation_seeds(seed, purpose, episodes)),
            first_episodes=0 if at_once else self._policy.first_episodes,
            admission_score=admission,
            required_score=required,
        )
        self._submit(order, _Asked(purpose, now, [snapshot]))

    def _fresh_seed(self, member: int, env_steps: int) -> int:
        """A seed of new episodes, derived from the job, the agent and its steps."""
        agent = self._algorithm.cohort.members[member]
        env_steps += self._view.base_env_steps[member]
        return int(derive_key(self._policy.plan.seed, agent.seed, env_steps))

    def _submit(self, order: EvaluationOrder, asked: _Asked) -> None:
        self._asked[order.order_id] = asked
        self._backend.submit(order)
        for answer in self._backend.poll():
            self._take(answer)

    def _leave_out(self) -> None:
        """Drop open orders. The backend was busy with them until now, or started environments for
        them."""
        if self.confirmed is None and not self._view.interrupted():
            text = "%d evaluations are late: ranking their members by earlier results"
            logger.info(text, len(self._asked))
        now, plan = self._view.now(), self._policy.plan
        busy_s = max(0.0, now.elapsed_s - self._busy_since_s) / self.costs.pace
        look = self._algorithm.members * plan.screening_episodes
        purposes = [asked.purpose for asked in self._asked.values()]
        episodes = sum(look if each == SCREENING else plan.episodes for each in purposes)
        cost_s = min(busy_s, episodes * self.costs.budget(now).episode_s)
        self.costs.record(now.used_s, cost_s, screening=False)
        self._asked.clear()

    def _take(self, answer: EvaluationAnswer) -> None:
        asked, now = self._asked.pop(answer.order_id, None), self._view.now()
        if self.candidates and self._backend.left_s() <= 0.0 and any(r.cut for r in answer.results):
            # Time has cut it: a part of an episode compares with no whole one.
            answer = replace(answer, results=())
        if asked is not None:
            is_look = asked.purpose == SCREENING
            self.costs.record(now.used_s, answer.duration_s, screening=is_look)
            if answer.results:
                if is_look:
                    self.costs.note_look(answer, now.elapsed_s - self._busy_since_s)
                self._take_results(asked, answer)
            elif is_look and self.is_concluding:
                self._phase = Phase.LOST_LOOK
        self._busy_since_s = now.elapsed_s

    def _take_results(self, asked: _Asked, answer: EvaluationAnswer) -> None:
        if asked.purpose == SCREENING:
            self.breaks.note(range(len(answer.results)), answer.results)
            self._take_look(asked, answer)
            return
        (snapshot,) = asked.snapshots
        self.breaks.note((snapshot.member,), answer.results)
        if asked.purpose == COMPARISON:
            mean = self.breaks.counted(answer.results[0]).mean
            self._contenders.rank_again(snapshot, mean)
        else:
            self._take_full(snapshot, answer)

    def _take_look(self, look: _Asked, answer: EvaluationAnswer) -> None:
        moment, now_s, target = look.moment, self._view.now().elapsed_s, self._policy.plan.target
        active = self._algorithm.active.tolist()
        duration_s = answer.duration_s / len(answer.results)
        means = [self.breaks.counted(result).mean for result in answer.results]
        passed: list[tuple[float, Snapshot]] = []
        for member, (result, mean) in enumerate(zip(answer.results, means, strict=True)):
            passes = target is not None and mean >= target and not self.breaks.exceed(member)
            is_kept = self._contenders.wants(member, mean, last=self.is_concluding)
            snapshot = None
            if active[member] and result.returns and (passes or is_kept):
                snapshot = (
                    look.snapshots[member]
                    if look.snapshots
                    else take_snapshot(self._algorithm, member, moment)
                )
            where = member, moment.env_steps[member], moment.version, moment.elapsed_s
            judgement = Judgement(*where, "progress", result, now_s, duration_s, snapshot)
            self._news.append(judgement)
            if snapshot is not None and is_kept:
                contender = Contender(mean, snapshot, judgement)
                self._contenders.add(contender, last=self.is_concluding)
            if snapshot is not None and passes:
                passed.append((mean, snapshot))
        self._last_mean = max(means)
        if self._first_mean is None and math.isfinite(self._last_mean):
            self._first_mean = self._last_mean
        self._passed = [snapshot for _, snapshot in sorted(passed, key=lambda pair: pair[0])]
        self._challenge()

    def _take_full(self, snapshot: Snapshot, answer: EvaluationAnswer) -> None:
        (result,), now_s, plan = answer.results, self._view.now().elapsed_s, self._policy.plan
        member, judged = snapshot.member, self._contenders.judged
        where = member, snapshot.env_steps, snapshot.version, snapshot.train_time_s
        judgement = Judgement(*where, "candidate", result, now_s, answer.duration_s, snapshot)
        self._news.append(judgement)
        counted, score = self.breaks.counted(result), -math.inf
        if member in judged:
            score = plan.score(self.breaks.counted(judged[member].result))
        if result.returns and plan.score(counted) >= score:
            judged[member] = judgement
        self._tests += 1
        reaches = result.returns and plan.is_reached_by(counted, self._tests)
        if reaches and not self.breaks.exceed(member):
            self.confirmed = judgement
        else:
            self._challenge(answer.duration_s)
