"""Which snapshot of a round is the best: screening while training goes on, full evaluations, the target."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.errors import DeadlineExpired
from podracer_core.random_numbers import derive_key
from podracer_core.random_streams import ADMISSION, COMPARISON, CONFIRMATION, SCREENING, evaluation_seeds
from podracer_core.training.judge import EvaluationAnswer, EvaluationOrder, Judge
from podracer_core.training.plan import RoundPlan
from podracer_core.training.schedule import EvaluationSchedule
from podracer_core.training.snapshots import Judgement, Moment, Snapshot, take_snapshot

__all__ = ["Selection"]

_POLL_S = 0.5
_SILENCE_S = 600.0
_PAUSE_S = 1.0
_CONTENDERS = 3  # snapshots of a member that are kept: those of its best looks


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
    ) -> None:
        """`now` tells where the round stands; `first_cost_s` estimates how long a first look takes; `base_env_steps`:
        each member's before the round; `interrupted` makes `conclude` give up."""
        self._algorithm, self._judge, self._plan = algorithm, judge, plan
        self._now, self._first_cost_s, self._interrupted = now, first_cost_s, interrupted
        self._base_env_steps = base_env_steps
        self._schedule = EvaluationSchedule(
            plan.evaluation_fraction, plan.duration_s, hunting=plan.target is not None, blocking=judge.blocking
        )
        self._order_ids = itertools.count(1)
        self._screening: _Screening | None = None
        self._full: dict[int, tuple[Snapshot, int]] = {}  # evaluations that have been ordered, each with its purpose
        self._contenders: list[Snapshot] = []  # passed the target in the last look, the best one last
        self._best: dict[int, list[tuple[float, Snapshot]]] = {}  # each member's contenders, the best first
        self._concluding = False
        self._candidates: dict[int, Judgement] = {}
        self._first_mean: float | None = None
        self._promising = False
        self._challenged_at = 0.0  # when a full evaluation was last asked for because of the target
        self._answered = False  # the last look
        self._episode_s = 0.0  # of the last look
        self._seen_at = self._heard_at = 0.0  # at the end of the round: when the judge was there, and said something
        self._news: list[Judgement] = []
        self.confirmed: Judgement | None = None

    @property
    def spent_s(self) -> float:
        """Seconds that evaluation has taken."""
        return self._schedule.spent_s

    @property
    def candidates(self) -> dict[int, Judgement]:
        """Every member's best full evaluation so far."""
        return dict(self._candidates)

    def admit_from(self, score: float | None) -> None:
        """From now on candidates have to reach this score; None: any will do."""
        self._plan = replace(self._plan, admission_score=score)

    def take_news(self) -> list[Judgement]:
        """Judgements since the last call."""
        news, self._news = self._news, []
        return news

    def step(self, *, may_look: bool = True) -> bool:
        """After an update: take answers, and look if it is time. Returns whether it has looked at this moment."""
        for answer in self._judge.poll(self._pause_s()):
            self._take(answer)
        if self._screening is not None or self._full or self.confirmed is not None or not self._judge.ready:
            return False
        if not may_look or not self._schedule.is_due(
            self._now().elapsed_s, self._first_cost_s(), promising=self._promising
        ):
            return False
        self._look()
        return True

    def conclude(self, timeout_s: float) -> None:
        """At the end of the round: a last look, fresh episodes of what each member has kept, and a full evaluation of
        its best snapshot.

        Raises DeadlineExpired where the judge is away for `timeout_s`, or says nothing for ten minutes.
        """
        self._seen_at = self._heard_at = time.monotonic()
        self._wait(timeout_s)
        self._answered, self._concluding = False, True
        while self.confirmed is None and not self._answered and not self._interrupted():
            if self._screening is None and self._judge.ready:
                self._look()
            else:
                self._listen(timeout_s)
        for order in (self._order_comparisons, self._order_candidates):
            if self.confirmed is None and not self._interrupted():
                order()
                self._wait(timeout_s)

    def _order_comparisons(self) -> None:
        """A look's number of fresh episodes for each member's contenders, of the best member first, as long as the
        fraction pays for them beside all episodes of each candidate."""
        first = min(self._plan.screening_episodes, self._plan.episodes)
        candidates_s = len(self._best) * self._plan.episodes * self._episode_s
        left_s = self._schedule.left_s(self._now().elapsed_s) - candidates_s
        for contenders in sorted(self._best.values(), key=lambda each: -each[0][0]):
            left_s -= len(contenders) * first * self._episode_s
            if left_s < 0.0:
                return
            for _, snapshot in contenders if len(contenders) > 1 else []:
                self._order_full(snapshot, COMPARISON, first)

    def _order_candidates(self) -> None:
        """Each member's best snapshot, the best of all first: with all episodes as long as the fraction pays for them,
        then with as many as a look has. Who may have reached the target gets all of them in any case, unless the first
        show that it has not."""
        news = [
            (mean, snapshot)
            for member, ((mean, snapshot), *_) in sorted(self._best.items(), key=lambda item: -item[1][0][0])
            if (judged := self._candidates.get(member)) is None
            or judged.snapshot is not snapshot
            or judged.result.episodes < self._plan.episodes  # given up, since it has not the target
        ]
        target, first = self._plan.target, min(self._plan.screening_episodes, self._plan.episodes)
        left_s = self._schedule.left_s(self._now().elapsed_s) - len(news) * first * self._episode_s
        for mean, snapshot in news:
            if self._interrupted() or self.confirmed is not None:
                return
            left_s -= (self._plan.episodes - first) * self._episode_s
            known = self._candidates.get(snapshot.member)
            is_given_up = known is not None and known.snapshot is snapshot
            if target is not None and mean >= target and not is_given_up:
                self._order_full(snapshot, CONFIRMATION, self._plan.episodes)
            else:
                self._order_full(snapshot, ADMISSION, self._plan.episodes if left_s >= 0.0 else first)

    def _wait(self, timeout_s: float) -> None:
        while (self._screening is not None or self._full) and self.confirmed is None and not self._interrupted():
            self._listen(timeout_s)

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

    def _look(self) -> None:
        moment, members = self._now(), range(self._algorithm.members)
        seed = self._seed(0, moment)
        order = EvaluationOrder(
            next(self._order_ids),
            tuple(members),
            self._algorithm.actor,
            tuple(evaluation_seeds(seed, SCREENING, self._plan.screening_episodes)),
            screening=True,
        )
        self._screening = _Screening(order.order_id, moment)
        self._judge.submit(order)
        for answer in self._judge.poll():
            self._take(answer)
        if self._screening is not None:
            self._screening.snapshots = [take_snapshot(self._algorithm, member, moment) for member in members]

    def _order_full(self, snapshot: Snapshot, purpose: int, episodes: int) -> None:
        seed = self._seed(snapshot.member, self._now(), snapshot)
        confirmation = purpose == CONFIRMATION
        order = EvaluationOrder(
            next(self._order_ids),
            (snapshot.member,),
            snapshot.actor,
            tuple(evaluation_seeds(seed, purpose, episodes)),
            first_episodes=0 if purpose == COMPARISON else min(self._plan.screening_episodes, self._plan.episodes),
            admission_score=self._plan.admission_score if purpose == ADMISSION else None,
            required_score=self._plan.target if confirmation else None,
        )
        self._full[order.order_id] = snapshot, purpose
        self._judge.submit(order)
        for answer in self._judge.poll():
            self._take(answer)

    def _take(self, answer: EvaluationAnswer) -> None:
        screening = self._screening
        if screening is not None and answer.order_id == screening.order_id:
            self._screening = None
            self._schedule.record(self._now().elapsed_s, answer.duration_s, screening=True)
            self._answered = bool(answer.results)
            if answer.results:
                self._episode_s = answer.duration_s / len(answer.results) / self._plan.screening_episodes
                self._take_look(screening, answer)
        elif answer.order_id in self._full:
            snapshot, purpose = self._full.pop(answer.order_id)
            self._schedule.record(self._now().elapsed_s, answer.duration_s, screening=False)
            if answer.results and purpose == COMPARISON:
                self._rank(snapshot, answer.results[0].mean)
            elif answer.results:
                self._take_full(snapshot, answer)

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
                if is_kept:
                    self._best[member] = kept if self._concluding else kept[: _CONTENDERS - 1]
                    self._best[member].append((mean, snapshot))
                    self._rank(snapshot, mean)
                if passes:
                    passed.append((mean, snapshot))
            self._news.append(
                Judgement(
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
            )
        self._note_promise(max(result.mean for result in answer.results))
        self._contenders = [snapshot for _, snapshot in sorted(passed, key=lambda pair: pair[0])]
        self._challenge()

    def _rank(self, snapshot: Snapshot, mean: float) -> None:
        """Put a contender where `mean` belongs; of equal ones the later is before: it has seen more."""
        others = [each for each in self._best[snapshot.member] if each[1] is not snapshot]
        contenders = [(mean, snapshot), *others]
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
        if self._contenders and self._schedule.allows(self._now().elapsed_s, last_cost_s, credit=True):
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
