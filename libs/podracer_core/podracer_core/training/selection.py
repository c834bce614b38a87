"""Which snapshot of a round is the best: screening while training goes on, full evaluations, the target."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.errors import DeadlineExpired
from podracer_core.random_numbers import derive_key
from podracer_core.random_numbers.streams import ADMISSION, COMPARISON, CONFIRMATION, SCREENING, evaluation_seeds
from podracer_core.training.judge import EvaluationAnswer, EvaluationOrder, Judge
from podracer_core.training.plan import RoundPlan
from podracer_core.training.schedule import CREDIT_S, EvaluationSchedule
from podracer_core.training.snapshots import Judgement, Moment, Snapshot, take_snapshot

__all__ = ["Selection"]

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_SILENCE_S = 600.0
_PAUSE_S = 1.0
_CONTENDERS = 3  # snapshots of a member that are kept: those of its best looks
_LATE_S, _LATE_PART = 3.0, 0.05  # a round waits for evaluations after its end: seconds, or this part of it if longer
_KNOWN_PART = 0.02  # of a round, from which on its whole use can be told from what it has used
_MOST_PACE = 5.0  # what takes longer than so was not evaluating, but starting environments
_LOOK_PART = 4  # a look in the middle of a round takes at most such a part of what evaluation may take


@dataclass(slots=True)
class _Screening:
    """A look at all members that has been ordered; `snapshots` once training may go on before the answer."""

    order_id: int
    moment: Moment
    snapshots: list[Snapshot] | None = None


class Selection:
    """Looks at all members with a few episodes, keeps each one's best snapshots, and has the best evaluated in full.

    The best of many looks is the luckiest, so at the end fresh episodes choose among the three best and the last state.
    A member whose look passes the target is evaluated in full at once, with fresh episodes and alone. `confirmed` is
    the judgement that passed it.

    Where training goes on meanwhile, the last evaluations are asked for so early that they are known when the round is
    over. What the fraction does not pay for, and what comes too late, is left out: those members are ranked by their
    looks.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        judge: Judge,
        plan: RoundPlan,
        now: Callable[[], Moment],
        first_cost_s: Callable[[], float],
        base_env_steps: Sequence[int],
        interrupted: Callable[[], bool] = lambda: False,
        returns: Callable[[], Sequence[float]] = lambda: (),
    ) -> None:
        """`now` tells where the round stands; `first_cost_s` estimates what a first look costs; `base_env_steps`:
        each member's before the round; `interrupted` makes `conclude` give up; `returns`: of each member's last
        training episodes."""
        self._algorithm, self._judge, self._plan = algorithm, judge, plan
        self._now, self._first_cost_s, self._interrupted, self._returns = now, first_cost_s, interrupted, returns
        self._base_env_steps = base_env_steps
        self._schedule = EvaluationSchedule(
            plan.evaluation_fraction, plan.duration_s, hunting=plan.target is not None, blocking=judge.blocking
        )
        self._order_ids = itertools.count(1)
        self._screening: _Screening | None = None
        self._full: dict[int, tuple[Snapshot, int]] = {}  # evaluations that have been ordered, each with its purpose
        self._contenders: list[Snapshot] = []  # passed the target in the last look, the best one last
        # Each member's contenders, the best first, with what was said of them: nothing where there was no look.
        self._best: dict[int, list[tuple[float, Snapshot, Judgement | None]]] = {}
        self._concluding = False
        self._to_come = deque([self._last_look, self._order_comparisons, self._order_candidates])
        self._ends_at_s = self._gives_up_at_s = math.inf
        self._told_to_end: Callable[[], bool] = lambda: False
        self._candidates: dict[int, Judgement] = {}
        self._first_mean: float | None = None
        self._promising = False
        self._challenged_at = 0.0  # when a full evaluation was last asked for because of the target
        self._episode_s = 0.0  # what an episode of the last look has cost; 0 before there has been one
        self._lengths: dict[int, float] = {}  # how many times as long each member's are as the mean; 1 at least
        self._pace = 1.0  # seconds that pass for each of these
        self._answered_at_s = 0.0  # since when the judge has been busy with what is out
        self._seen_at = self._heard_at = 0.0  # at the end of the round: when the judge was there, and said something
        self._news: list[Judgement] = []
        self.confirmed: Judgement | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of processors, or of the GPU, that evaluation has taken."""
        return self._schedule.spent_s

    @property
    def candidates(self) -> dict[int, Judgement]:
        """Every member's best full evaluation so far; where it has none, the look at its best snapshot."""
        looks = {member: known for member, ((_, _, known), *_) in self._best.items() if known is not None}
        return looks | self._candidates

    @property
    def kept(self) -> list[Judgement]:
        """All that may become a candidate, or is one."""
        contenders = [known for each in self._best.values() for _, _, known in each if known is not None]
        return [*contenders, *self._candidates.values()]

    @property
    def is_concluding(self) -> bool:
        """Whether the round's last look has been taken."""
        return self._concluding

    @property
    def closing_cost_s(self) -> float:
        """What the last evaluations of the round still to be asked for will cost."""
        if self._concluding or self.confirmed is not None:
            return 0.0
        left_s = self._end_left_s(self._now())
        whole = self._algorithm.members * (self._plan.screening_episodes + self._plan.episodes)
        return max(0.0, min(left_s, whole * self._cost_of_episode_s))

    @property
    def closing_s(self) -> float:
        """Seconds that pass meanwhile."""
        return self.closing_cost_s * self._pace

    def admit_from(self, score: float | None) -> None:
        """From now on candidates have to reach this score; None: any will do."""
        if score != self._plan.admission_score:
            self._plan = replace(self._plan, admission_score=score)

    def take_news(self) -> list[Judgement]:
        """Judgements since the last call."""
        news, self._news = self._news, []
        return news

    def step(self, *, may_look: bool = True) -> bool:
        """After an update: take answers, and look if it is time. Returns whether it has looked at this moment."""
        for answer in self._judge.poll(self._pause_s()):
            self._take(answer)
        if self._is_waiting or self.confirmed is not None or not self._judge.ready:
            return False
        if self._concluding and self._best:
            self._go_on()
            return False
        if not may_look:
            return False
        now = self._now()
        if self._concluding or self._is_time_to_conclude(now):
            self._go_on()
            return True
        episodes, cost_s = self._look_episodes(), self._cost_of_episode_s * self._algorithm.members
        whole = self._plan.screening_episodes / episodes
        self._schedule.round_s = self._whole_use_s(now)
        if not self._schedule.is_due(now.used_s, episodes * cost_s, promising=self._promising, whole=whole):
            return False
        self._look(episodes)
        return True

    def conclude(self, timeout_s: float, told_to_end: Callable[[], bool] = lambda: False) -> None:
        """At the end of the round: a last look, fresh episodes of what each member has kept, and a full evaluation of
        its best snapshot, as far as all this is not known yet. Where something is known of a round of limited seconds,
        or it is `told_to_end`, it waits little beyond its end, else for half of the round.

        Raises DeadlineExpired where the judge is away for `timeout_s`, or says nothing for ten minutes.
        """
        self._seen_at = self._heard_at = time.monotonic()
        now_s, limit_s = self._now().elapsed_s, self._plan.duration_s
        late_s = max(_LATE_S, _LATE_PART * (limit_s or 0.0))
        ends_at_s = limit_s if limit_s is not None else math.inf
        self._told_to_end, self._gives_up_at_s = told_to_end, 1.5 * ends_at_s + late_s
        self._ends_at_s = late_s + (min(ends_at_s, now_s) if told_to_end() else ends_at_s)
        while self._is_waiting and not self._is_over:
            self._listen(timeout_s)
        while (self._to_come or self._is_waiting) and not self._is_over:
            if self._is_waiting or not self._judge.ready:
                self._listen(timeout_s)
            else:
                self._go_on()
        if self._is_waiting:
            self._leave_out()

    @property
    def _is_waiting(self) -> bool:
        return self._screening is not None or bool(self._full)

    @property
    def _is_over(self) -> bool:
        """Whether nothing is waited for any more: the target is reached, somebody else needs the pod, or time is up."""
        is_enough = bool(self.candidates) or self._told_to_end()
        is_late = self._now().elapsed_s >= (self._ends_at_s if is_enough else self._gives_up_at_s)
        return is_late or self.confirmed is not None or self._interrupted()

    def _leave_out(self) -> None:
        """Wait for no answer any more. The judge was busy with them until now, or started environments for them."""
        if self.confirmed is None and not self._interrupted():
            text = "%d evaluations have not come in time: those members are ranked by what is known of them"
            logger.info(text, len(self._full) + (self._screening is not None))
        now = self._now()
        episodes = self._plan.episodes * len(self._full)
        episodes += self._algorithm.members * self._plan.screening_episodes if self._screening is not None else 0
        busy_s = max(0.0, now.elapsed_s - self._answered_at_s) / self._pace
        self._schedule.record(now.used_s, min(busy_s, episodes * self._cost_of_episode_s), screening=False)
        self._screening, self._full = None, {}

    def _is_time_to_conclude(self, now: Moment) -> bool:
        """Whether the last evaluations have to be asked for now to be known when the round is over. Where training
        waits for them, the round ends earlier instead."""
        part = self._part(now)
        if self._judge.blocking or not part:
            return False
        return now.elapsed_s * (1.0 - part) / part <= self.closing_s

    def _part(self, now: Moment) -> float:
        return self._plan.part(now.elapsed_s, max(now.env_steps), now.used_s)

    def _whole_use_s(self, now: Moment) -> float | None:
        """What the whole round will use; None where its length is not known."""
        part = self._part(now)
        whole_s = now.used_s / min(part, 1.0) if part >= _KNOWN_PART else self._plan.duration_s
        if whole_s is None or self._plan.duration_s is not None:
            return whole_s
        return max(whole_s, now.used_s + CREDIT_S)

    def _end_left_s(self, now: Moment) -> float:
        """What the fraction leaves for the end of the round."""
        self._schedule.round_s = self._whole_use_s(now)
        left_s = self._schedule.end_left_s
        return self._schedule.left_s(now.used_s) if left_s is None else left_s

    @property
    def _cost_of_episode_s(self) -> float:
        return self._episode_s or self._first_cost_s() / self._algorithm.members / self._plan.screening_episodes

    def _look_episodes(self) -> int:
        """Of each member, in a look in the middle of the round."""
        whole_s = self._whole_use_s(self._now())
        if whole_s is None:
            return self._plan.screening_episodes
        part_s = self._plan.evaluation_fraction * whole_s / _LOOK_PART
        return self._as_many_episodes(part_s, at_least=1)

    def _as_many_episodes(self, seconds: float, at_least: int = 0) -> int:
        """Of each member, as `seconds` pay for, at most a whole look's."""
        cost_s = self._cost_of_episode_s * self._algorithm.members
        paid = seconds / cost_s if cost_s > 0.0 else math.inf
        most = self._plan.screening_episodes
        if not self._judge.blocking:  # in no more environments than a candidate: starting others would take seconds
            most = max(1, min(most, self._plan.episodes // self._algorithm.members))
        return int(max(at_least, min(paid, most)))

    def _go_on(self) -> None:
        """Begin what comes next at the end of the round, once nothing is out."""
        while self._to_come and not (self._is_waiting or self._is_over) and self._judge.ready:
            self._concluding = True
            self._to_come.popleft()()

    def _last_look(self) -> None:
        """A look at the present state, with half of what is left; where that does not pay for an episode of each
        member, and there has been no look, the member of the best training return is a candidate."""
        left_s = self._end_left_s(self._now())
        if (episodes := self._as_many_episodes(left_s / 2)) > 0:
            self._look(episodes)
        elif not self._best:
            returns = [value if value == value else -math.inf for value in self._returns()]
            active = [m for m in range(self._algorithm.members) if bool(self._algorithm.active[m])]
            if active:
                member = max(active, key=lambda each: returns[each] if returns else 0.0)
                snapshot = take_snapshot(self._algorithm, member, self._now())
                self._best[member] = [(returns[member] if returns else -math.inf, snapshot, None)]

    def _order_comparisons(self) -> None:
        """A look's number of fresh episodes for each member's contenders, of the best member first, as long as the
        fraction pays for them beside all episodes of each candidate."""
        first = min(self._plan.screening_episodes, self._plan.episodes)
        candidates_s = len(self._best) * self._plan.episodes * self._episode_s
        left_s = self._end_left_s(self._now()) - candidates_s
        for contenders in sorted(self._best.values(), key=lambda each: -each[0][0]):
            left_s -= len(contenders) * first * self._episode_s
            if left_s < 0.0:
                return
            for _, snapshot, _ in contenders if len(contenders) > 1 else []:
                self._order_full(snapshot, COMPARISON, first)

    def _order_candidates(self) -> None:
        """Each member's best snapshot, the best of all first: with all episodes as long as the fraction pays for them,
        then with as many as a look has, as long as it pays for those; the first one in any case. A
        member that may have reached the target gets all of them, unless the first show that it has not."""
        news = [
            (mean, snapshot)
            for member, ((mean, snapshot, _), *_) in sorted(self._best.items(), key=lambda item: -item[1][0][0])
            if (judged := self._candidates.get(member)) is None
            or judged.snapshot is not snapshot
            or judged.result.episodes < self._plan.episodes  # given up, since it has not the target
        ]
        target, first = self._plan.target, min(self._plan.screening_episodes, self._plan.episodes)
        costs_s = [self._cost_of_episode_s * self._lengths.get(snapshot.member, 1.0) for _, snapshot in news]
        left_s = self._end_left_s(self._now())
        rest_s = left_s - first * sum(costs_s)  # for what is beyond the first episodes of all
        for number, ((mean, snapshot), cost_s) in enumerate(zip(news, costs_s, strict=True)):
            if self._is_over:
                return
            known = self._candidates.get(snapshot.member)
            is_given_up = known is not None and known.snapshot is snapshot
            rest_s -= (self._plan.episodes - first) * cost_s
            if target is not None and mean >= target and not is_given_up:
                self._order_full(snapshot, CONFIRMATION, self._plan.episodes)
                continue
            pays_for_all = rest_s >= 0.0 or (number == 0 and left_s >= self._plan.episodes * cost_s)
            episodes = self._plan.episodes if pays_for_all else first
            left_s -= episodes * cost_s
            if left_s >= 0.0 or number == 0:
                self._order_full(snapshot, ADMISSION, episodes)

    def _listen(self, timeout_s: float) -> None:
        """Take what comes soon. Raises DeadlineExpired once patience with the judge has ended."""
        for answer in self._judge.poll(min(_POLL_S, timeout_s)):
            self._take(answer)
            if answer.results:
                self._heard_at = time.monotonic()
        now = time.monotonic()
        self._seen_at = now if self._judge.ready else self._seen_at
        if now - self._seen_at > timeout_s or now - self._heard_at > _SILENCE_S:
            raise DeadlineExpired("the evaluations at the end of the round have not come", reason="NO_EVALUATION")

    def _pause_s(self) -> float:
        """Whoever may have reached the target just now is waited for a little: most likely training is over."""
        return max(self._challenged_at + _PAUSE_S - time.monotonic(), 0.0) if self._full else 0.0

    def _look(self, episodes: int) -> None:
        moment, members = self._now(), range(self._algorithm.members)
        self._answered_at_s = moment.elapsed_s
        seed = self._seed(0, moment)
        order = EvaluationOrder(
            next(self._order_ids),
            tuple(members),
            self._algorithm.actor,
            tuple(evaluation_seeds(seed, SCREENING, episodes)),
            screening=True,
        )
        self._screening = _Screening(order.order_id, moment)
        self._judge.submit(order)
        for answer in self._judge.poll():
            self._take(answer)
        if self._screening is not None:
            self._screening.snapshots = [take_snapshot(self._algorithm, member, moment) for member in members]

    def _order_full(self, snapshot: Snapshot, purpose: int, episodes: int) -> None:
        now = self._now()
        seed = self._seed(snapshot.member, now, snapshot)
        self._answered_at_s = self._answered_at_s if self._full else now.elapsed_s
        confirmation = purpose == CONFIRMATION
        at_once = purpose == COMPARISON or not (self._judge.blocking or confirmation)
        order = EvaluationOrder(
            next(self._order_ids),
            (snapshot.member,),
            snapshot.actor,
            tuple(evaluation_seeds(seed, purpose, episodes)),
            first_episodes=0 if at_once else min(self._plan.screening_episodes, self._plan.episodes),
            admission_score=self._plan.admission_score if purpose == ADMISSION else None,
            required_score=self._plan.target if confirmation else None,
        )
        self._full[order.order_id] = snapshot, purpose
        self._judge.submit(order)
        for answer in self._judge.poll():
            self._take(answer)

    def _take(self, answer: EvaluationAnswer) -> None:
        screening, now = self._screening, self._now()
        if screening is not None and answer.order_id == screening.order_id:
            self._screening = None
            self._schedule.record(now.used_s, answer.duration_s, screening=True)
            if answer.results:
                self._note_cost(answer, now.elapsed_s - self._answered_at_s)
                self._take_look(screening, answer)
            elif self._concluding:
                self._to_come.appendleft(self._last_look)  # it was lost
        elif answer.order_id in self._full:
            snapshot, purpose = self._full.pop(answer.order_id)
            self._schedule.record(now.used_s, answer.duration_s, screening=False)
            if answer.results and purpose == COMPARISON:
                _, _, known = next(each for each in self._best[snapshot.member] if each[1] is snapshot)
                self._rank(snapshot, answer.results[0].mean, known)
            elif answer.results:
                self._take_full(snapshot, answer)
        self._answered_at_s = now.elapsed_s

    def _note_cost(self, answer: EvaluationAnswer, elapsed_s: float) -> None:
        """Of a look that was answered after so many seconds."""
        self._episode_s = answer.duration_s / sum(result.episodes for result in answer.results)
        means = [sum(result.lengths) / result.episodes for result in answer.results]
        usual = sum(means) / len(means)
        self._lengths = {member: max(1.0, mean / usual) for member, mean in enumerate(means)}
        if answer.duration_s > 0.0:
            self._pace = min(max(elapsed_s / answer.duration_s, 0.01), _MOST_PACE)

    def _take_look(self, screening: _Screening, answer: EvaluationAnswer) -> None:
        moment, now_s = screening.moment, self._now().elapsed_s
        active = self._algorithm.active.tolist()
        passed: list[tuple[float, Snapshot]] = []
        for member, result in enumerate(answer.results):
            mean = result.mean
            passes = self._plan.target is not None and mean >= self._plan.target
            snapshot, kept = None, self._best.get(member, [])[:_CONTENDERS]
            is_kept = self._concluding or len(kept) < _CONTENDERS or mean >= kept[-1][0]
            if active[member] and (passes or is_kept):
                taken = screening.snapshots
                snapshot = taken[member] if taken else take_snapshot(self._algorithm, member, moment)
            judgement = Judgement(
                member,
                moment.env_steps[member],
                moment.version,
                moment.elapsed_s,
                "progress",
                result,
                now_s,
                answer.duration_s / len(answer.results),
                snapshot,
            )
            self._news.append(judgement)
            if snapshot is not None and is_kept:
                self._best[member] = kept if self._concluding else kept[: _CONTENDERS - 1]
                self._rank(snapshot, mean, judgement)
            if snapshot is not None and passes:
                passed.append((mean, snapshot))
        self._note_promise(max(result.mean for result in answer.results))
        self._contenders = [snapshot for _, snapshot in sorted(passed, key=lambda pair: pair[0])]
        self._challenge()

    def _rank(self, snapshot: Snapshot, mean: float, known: Judgement | None) -> None:
        """Put a contender where `mean` belongs; of equal ones the later is before: it has seen more."""
        others = [each for each in self._best[snapshot.member] if each[1] is not snapshot]
        contenders = [(mean, snapshot, known), *others]
        self._best[snapshot.member] = sorted(contenders, key=lambda each: (-each[0], -each[1].env_steps))

    def _take_full(self, snapshot: Snapshot, answer: EvaluationAnswer) -> None:
        result = answer.results[0]
        judgement = Judgement(
            snapshot.member,
            snapshot.env_steps,
            snapshot.version,
            snapshot.train_time_s,
            "candidate",
            result,
            self._now().elapsed_s,
            answer.duration_s,
            snapshot,
        )
        self._news.append(judgement)
        known = self._candidates.get(snapshot.member)
        if known is None or self._plan.score(result) >= self._plan.score(known.result):
            self._candidates[snapshot.member] = judgement
        if self._plan.is_reached_by(result):
            self.confirmed = judgement
        else:
            self._challenge(answer.duration_s)

    def _challenge(self, last_cost_s: float = 0.0) -> None:
        """Have the next member evaluated that seems to have reached the target: the best always, others if there is
        time."""
        if self._contenders and self._schedule.allows(self._now().used_s, last_cost_s, credit=True):
            self._challenged_at = time.monotonic()
            self._order_full(self._contenders.pop(), CONFIRMATION, self._plan.episodes)

    def _note_promise(self, best_mean: float) -> None:
        if self._first_mean is None:
            self._first_mean = best_mean
        if self._plan.target is not None:
            self._promising = best_mean >= self._plan.target - 0.5 * max(self._plan.target - self._first_mean, 0.0)

    def _seed(self, member: int, moment: Moment, snapshot: Snapshot | None = None) -> int:
        """Seed of episodes that nobody has seen: of this job, this agent and this state of it."""
        agent = self._algorithm.cohort.members[member]
        steps = moment.env_steps[member] if snapshot is None else snapshot.env_steps
        return int(derive_key(self._plan.seed, agent.seed, self._base_env_steps[member] + steps))
