"""Looks, candidates and the target, with a judge whose answers are written down beforehand."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from podracer_core.algorithms import Algorithm
from podracer_core.errors import DeadlineExpired
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks import Actor
from podracer_core.training import (
    EvaluationAnswer,
    EvaluationBackend,
    EvaluationOrder,
    Moment,
    RoundPlan,
    RoundView,
    Selection,
)

Make = Callable[..., Algorithm]


def result(mean: float, seeds: tuple[int, ...], spread: float = 1.0) -> EvaluationResult:
    returns = tuple(mean + (spread if index % 2 else -spread) for index in range(len(seeds)))
    return EvaluationResult(returns, (10,) * len(seeds), seeds)


def marked(actor: Actor) -> float:
    """The moment of an actor's weights."""
    return float(actor.mean.flatten()[0])  # type: ignore[attr-defined]


def is_comparison(order: EvaluationOrder) -> bool:
    """Whether it is for choosing among what a member has kept: all at once, and no candidate's."""
    return not order.screening and order.first_episodes == 0 and len(order.seeds) <= 8


class ScriptedJudge(EvaluationBackend):
    """Answers looks and full evaluations with the means of the script; later only if `delayed`."""

    def __init__(
        self,
        looks: list[list[float] | None],
        fulls: list[float],
        *,
        delayed: bool = False,
        cost_s: float = 0.01,
        comparisons: dict[float, float] | None = None,
    ) -> None:
        """`comparisons`: of the snapshots with these marks; without them those answers are lost."""
        self.cost_s, self.comparisons = cost_s, comparisons
        self.looks, self.fulls, self.delayed = deque(looks), deque(fulls), delayed
        self.orders: list[EvaluationOrder] = []
        self.waiting: list[EvaluationOrder] = []
        self.blocking = not delayed
        self.released = not delayed

        self.available = True

    @property
    def ready(self) -> bool:
        return self.available

    def submit(self, order: EvaluationOrder) -> None:
        self.orders.append(order)
        self.waiting.append(order)

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        if not self.released:
            return []
        answers = []
        for order in self.waiting:
            if order.screening:
                means = self.looks.popleft()
                results = (
                    () if means is None else tuple(result(mean, order.seeds) for mean in means)
                )
            elif is_comparison(order):
                by_mark = self.comparisons or {}
                results = (result(by_mark[marked(order.actor)], order.seeds),) if by_mark else ()
            else:
                results = (result(self.fulls.popleft(), order.seeds),)
            answers.append(EvaluationAnswer(order.order_id, results, self.cost_s))
        self.waiting = []
        return answers


class Stage:
    """A selection whose clock, steps and estimates the test sets."""

    def __init__(
        self, algorithm: Algorithm, judge: EvaluationBackend, base: int = 0, **plan: object
    ) -> None:
        self.elapsed_s, self.algorithm = 0.0, algorithm
        self.steps = 0
        self.first_cost_s, self.interrupted = 0.01, False
        self.returns: list[float] = []
        planned = RoundPlan(**({"duration_s": 100.0} | plan))
        view = RoundView(
            lambda: self.now(),  # noqa: PLW0108 - a test may replace it
            lambda: self.first_cost_s,
            [base] * algorithm.members,
            lambda: self.interrupted,
            lambda: self.returns,
            lambda: 1.0 + (planned.duration_s or math.inf),
        )
        self.selection = Selection(algorithm, judge, planned, view)

    def now(self) -> Moment:
        return Moment(
            self.elapsed_s,
            [self.steps] * self.algorithm.members,
            self.algorithm.version,
            self.elapsed_s,
        )

    def step(self, *, may_look: bool = True) -> bool:
        self.elapsed_s += 1.0
        self.steps += 10
        self.algorithm.actor.mean += 1.0  # marks the actor of this moment
        return self.selection.step(may_look=may_look)


def mark(stage: Stage, member: int) -> float:
    """At which step the kept snapshot of a member was taken, by its weights."""
    judgement = stage.selection.candidates[member]
    assert judgement.snapshot is not None
    return float(judgement.snapshot.actor.mean.flatten()[0])  # type: ignore[attr-defined]


@pytest.fixture
def algorithm(make_algorithm: Make) -> Algorithm:
    return make_algorithm((1, 2))


def test_the_best_look_of_each_member_is_its_candidate_with_the_weights_of_that_moment(algorithm):
    judge = ScriptedJudge([[5, 1], [3, 9], [2, 2]], [8.5, 5.5])  # the best look's goes first
    stage = Stage(algorithm, judge)
    assert stage.step()
    assert stage.step()
    stage.selection.conclude(1.0)
    candidates = stage.selection.candidates
    assert candidates[0].result.mean == pytest.approx(5.5)
    assert candidates[1].result.mean == pytest.approx(8.5)
    assert (candidates[0].env_steps, candidates[1].env_steps) == (10, 20)
    assert (mark(stage, 0), mark(stage, 1)) == (1.0, 2.0)


def test_who_has_something_else_to_do_at_a_moment_is_not_looked_at(algorithm):
    judge = ScriptedJudge([[5, 1]], [])
    stage = Stage(algorithm, judge)
    assert not stage.step(may_look=False)
    assert not judge.orders
    assert stage.step()


def test_a_look_that_passes_the_target_is_confirmed_alone_with_all_fresh_episodes(algorithm):
    judge = ScriptedJudge([[10, 50]], [48.0])
    stage = Stage(algorithm, judge, target=40.0, statistic="mean", episodes=20)
    stage.step()
    look, full = judge.orders
    assert full.members == (1,)
    assert full.actor.members == 1
    assert (full.first_episodes, full.required_score) == (8, 40.0)
    assert len(full.seeds) == 20
    assert not set(full.seeds) & set(look.seeds)
    confirmed = stage.selection.confirmed
    assert confirmed is not None
    assert confirmed.member == 1
    assert confirmed.purpose == "candidate"
    stage.selection.conclude(1.0)
    assert len(judge.orders) == 2, "after the target nothing more is evaluated"


def test_a_confirmation_that_was_given_up_is_evaluated_in_full_at_the_end(algorithm):
    class GivesUp(ScriptedJudge):
        def submit(self, order: EvaluationOrder) -> None:
            super().submit(replace(order, seeds=order.seeds[:4]) if order.required_score else order)

    judge = GivesUp([[5, 20], [1, 1]], [3, 7, 4])
    stage = Stage(
        algorithm, judge, target=10.0, episodes=16, screening_episodes=4, evaluation_fraction=1.0
    )
    stage.step()
    assert judge.orders[1].required_score == 10.0
    assert stage.selection.candidates[1].result.episodes == 4
    stage.selection.conclude(1.0)
    fulls = [order for order in judge.orders[3:] if not is_comparison(order)]
    assert [order.required_score for order in fulls] == [None, None]
    assert stage.selection.candidates[1].result.episodes == 16


def test_the_statistic_decides(algorithm):
    judge = ScriptedJudge([[50, 10]], [40.2])
    stage = Stage(algorithm, judge, target=40.0, statistic="lower_bound", episodes=20)
    stage.step()
    assert stage.selection.confirmed is None
    judge = ScriptedJudge([[50, 10]], [40.2])
    stage = Stage(algorithm, judge, target=40.0, statistic="mean", episodes=20)
    stage.step()
    assert stage.selection.confirmed is not None


def test_where_no_other_test_follows_each_further_one_is_stricter(algorithm):
    """With 20 values of ± 1 the 95 % interval ends 0.48 under the mean, the second test's bound
    lies 0.62 under it."""
    confirmed = []
    for mean, is_last_word in ((40.5, False), (40.5, True), (40.8, True)):
        stage = Stage(algorithm, ScriptedJudge([[60, 50]], [39.0, mean]), target=40.0, episodes=20,
            is_last_word=is_last_word)  # fmt: skip
        stage.step()
        confirmed.append(stage.selection.confirmed is not None)
    assert confirmed == [True, False, True]


def test_a_contender_that_fails_gives_way_to_the_next(algorithm):
    judge = ScriptedJudge([[60, 50]], [39.0, 41.0])
    stage = Stage(algorithm, judge, target=40.0, statistic="mean", episodes=20)
    stage.step()
    assert [order.members for order in judge.orders[1:]] == [(0,), (1,)]
    assert stage.selection.confirmed is not None
    assert stage.selection.confirmed.member == 1


def test_a_late_answer_is_of_the_weights_that_were_asked_about(algorithm):
    judge = ScriptedJudge([[1, 50]], [45.0], delayed=True)
    stage = Stage(algorithm, judge, target=40.0, statistic="mean", episodes=20)
    assert stage.step()
    for _ in range(3):
        assert not stage.step(), "one look at a time"
    judge.released = True
    stage.step()
    stage.step()
    confirmed = stage.selection.confirmed
    assert confirmed is not None
    assert confirmed.snapshot is not None
    assert confirmed.env_steps == 10
    assert torch.all(confirmed.snapshot.actor.mean == 1.0)  # type: ignore[attr-defined]
    assert confirmed.train_time_s == 1.0
    assert confirmed.confirm_time_s == 5.0


def test_a_member_that_diverged_is_no_candidate(algorithm):
    judge = ScriptedJudge([[5, 90], [5, 90]], [5.0])
    stage = Stage(algorithm, judge)
    algorithm.active[1] = False
    stage.step()
    stage.selection.conclude(1.0)
    assert set(stage.selection.candidates) == {0}


def test_admission_is_asked_of_candidates_at_the_end_and_may_change_before(algorithm):
    judge = ScriptedJudge([[5, 6]], [5.0, 6.0])
    stage = Stage(algorithm, judge, admission_score=100.0)
    stage.selection.admit_from(7.0)
    stage.selection.conclude(1.0)
    fulls = [order for order in judge.orders if not order.screening]
    assert [order.admission_score for order in fulls] == [7.0, 7.0]
    assert all(order.first_episodes == 8 for order in fulls)


def test_a_lost_look_at_the_end_is_asked_for_again(algorithm):
    judge = ScriptedJudge([None, None, [5, 6]], [5.0, 6.0])
    stage = Stage(algorithm, judge)
    stage.selection.conclude(1.0)
    assert set(stage.selection.candidates) == {0, 1}


def test_the_end_waits_for_a_judge_that_is_away_only_so_long(algorithm):
    judge = ScriptedJudge([], [], delayed=True)
    judge.available = False
    with pytest.raises(DeadlineExpired):
        Stage(algorithm, judge).selection.conclude(0.1)


def test_a_judge_that_goes_away_with_the_last_look_does_not_make_it_wait_for_ever(algorithm):
    class Leaving(ScriptedJudge):
        def submit(self, order: EvaluationOrder) -> None:
            super().submit(order)
            self.available = False

    judge = Leaving([None], [])
    with pytest.raises(DeadlineExpired):
        Stage(algorithm, judge).selection.conclude(0.1)
    assert len(judge.orders) == 1


def test_an_interrupted_end_does_not_wait(algorithm):
    judge = ScriptedJudge([], [], delayed=True)
    stage = Stage(algorithm, judge)
    stage.interrupted = True
    stage.selection.conclude(10.0)
    assert not judge.orders


def test_fresh_episodes_choose_among_the_three_best_looks_and_the_last_state(algorithm):
    """Of five looks at 9, 5, 8, 7 and last 6 the second is dropped; the luckiest turns out to be
    the worst."""
    judge = ScriptedJudge(
        [[9, 0], [5, 0], [8, 0], [7, 0], [6, 0]], [6.5], comparisons={1: 3, 3: 4, 4: 6, 5: 5}
    )
    algorithm.active[1] = False
    stage = Stage(algorithm, judge)
    for _ in range(4):
        assert stage.step()
    stage.step(may_look=False)
    stage.selection.conclude(1.0)
    compared = [order for order in judge.orders if is_comparison(order)]
    assert [marked(order.actor) for order in compared] == [1.0, 3.0, 4.0, 5.0]
    assert {len(order.seeds) for order in compared} == {8}
    assert (mark(stage, 0), stage.selection.candidates[0].result.mean) == (4.0, pytest.approx(6.5))
    seeds = [seed for order in judge.orders for seed in order.seeds]
    assert len(seeds) - len(set(seeds)) == 0, "what chooses is not what is reported"


@pytest.mark.parametrize(("round_s", "compared"), [(74.0, 0), (76.0, 2)])
def test_the_fraction_has_to_pay_for_choosing_beside_the_candidate(algorithm, round_s, compared):
    """A look of 3 s at 2 members is 1.5 s for 8 episodes: two looks, 16 to choose by and the
    candidate's 32 are 15 s, a fifth of 75 s."""
    judge = ScriptedJudge([[9, 0], [8, 0]], [6.5], comparisons={1: 3, 2: 4}, cost_s=3.0)
    algorithm.active[1] = False
    stage = Stage(algorithm, judge, duration_s=round_s, admission_score=0.0)
    stage.step()
    stage.step(may_look=False)
    stage.elapsed_s = round_s
    stage.selection.conclude(1.0)
    assert sum(map(is_comparison, judge.orders)) == compared


@pytest.mark.parametrize(
    ("round_s", "cost_s", "episodes"),
    [
        (100.0, 0.01, [32, 32]),
        (13.0, 1.0, [8, 8]),
        (15.0, 1.0, [32]),
        (20.0, 1.0, [32, 8]),
        (25.0, 1.0, [32, 32]),
    ],
)
def test_candidates_get_all_episodes_as_long_as_the_fraction_pays_for_them(
    algorithm, round_s, cost_s, episodes
):
    """A look at two members is 16 episodes, the candidates' own first ones as many, all others of
    one 24."""
    judge = ScriptedJudge([[5, 1]], [5.5, 1.5], cost_s=cost_s)
    stage = Stage(algorithm, judge, duration_s=round_s)
    stage.elapsed_s = round_s
    stage.selection.conclude(1.0)
    assert [len(order.seeds) for order in judge.orders if not order.screening] == episodes
    assert [order.members for order in judge.orders if not order.screening] == [(0,), (1,)][
        : len(episodes)
    ]
    others = [
        candidate
        for candidate in stage.selection.candidates.values()
        if candidate.purpose == "progress"
    ]
    assert [(one.member, one.result.mean) for one in others] == [(1, 1)] * (2 - len(episodes)), (
        "known by its look"
    )


def test_who_may_have_reached_the_target_at_the_end_gets_all_episodes_whatever_they_cost(algorithm):
    judge = ScriptedJudge([[5, 1]], [5.5, 1.5], cost_s=10.0)
    stage = Stage(algorithm, judge, duration_s=15.0, target=4.0, admission_score=0.0)
    stage.elapsed_s = 15.0
    stage.selection.conclude(1.0)
    (full,) = [order for order in judge.orders if not order.screening]
    assert (full.members, len(full.seeds), full.first_episodes, full.required_score) == (
        (0,),
        32,
        8,
        4.0,
    )
    assert stage.selection.confirmed is not None, "and the other is not asked about any more"


def test_every_answer_is_news_once(algorithm):
    judge = ScriptedJudge([[5, 1], [3, 9]], [5.5, 8.5])
    stage = Stage(algorithm, judge)
    stage.step()
    stage.selection.conclude(1.0)
    news = stage.selection.take_news()
    assert [(one.purpose, one.member) for one in news] == [
        ("progress", 0), ("progress", 1), ("progress", 0), ("progress", 1), ("candidate", 1),
        ("candidate", 0),
    ]  # fmt: skip
    assert stage.selection.take_news() == []


def test_fresh_episodes_for_every_agent_and_moment(make_algorithm):
    seen: set[int] = set()
    for seeds, base in (((1, 2), 0), ((3, 4), 0), ((1, 2), 1000)):
        judge = ScriptedJudge([[5, 6], [7, 8]], [5.0, 6.0, 7.0, 8.0])
        stage = Stage(make_algorithm(seeds), judge, base)
        stage.step()
        stage.step()
        for order in judge.orders:
            assert not seen & set(order.seeds)
            seen |= set(order.seeds)


def train_beside(stage: Stage, judge: ScriptedJudge, until_s: float) -> None:
    """Train with a judge that answers each order after a second."""
    while stage.elapsed_s < until_s:
        judge.released = True
        stage.step()
        judge.released = False


def test_the_last_evaluations_are_known_when_the_round_ends(algorithm):
    judge = ScriptedJudge([[5, 1]] * 40, [6.5, 2.5], delayed=True, cost_s=0.1)
    stage = Stage(algorithm, judge, duration_s=40.0)
    train_beside(stage, judge, 40.0)
    ordered = len(judge.orders)
    stage.selection.conclude(1.0)
    assert len(judge.orders) == ordered, "nothing is left to ask for"
    assert {one.purpose for one in stage.selection.candidates.values()} == {"candidate"}
    assert stage.selection.spent_s <= 0.2 * 40.0
    assert stage.elapsed_s == 40.0


def test_what_comes_too_late_is_left_out_and_its_member_ranked_by_its_look(algorithm):
    judge = ScriptedJudge([[5, 1], [6, 2], [7, 3]], [], delayed=True, cost_s=1.0)
    stage = Stage(algorithm, judge, duration_s=40.0)
    train_beside(stage, judge, 20.0)
    looks = sum(order.screening for order in judge.orders)
    judge.looks.clear()

    def passing() -> Moment:
        stage.elapsed_s += 0.5
        return Stage.now(stage)

    stage.elapsed_s = 40.0
    stage.now = passing  # type: ignore[method-assign]
    stage.selection.conclude(60.0)
    assert 43.0 <= stage.elapsed_s < 46.0
    assert looks >= 1
    candidates = stage.selection.candidates
    assert {one.purpose for one in candidates.values()} == {"progress"}
    assert all(one in stage.selection.kept for one in candidates.values()), (
        "its message can be found"
    )
    assert stage.selection.spent_s > looks * 1.0, "the judge was busy until then"


def test_where_not_even_a_look_is_paid_for_the_best_training_return_is_the_candidate(algorithm):
    judge = ScriptedJudge([], [4.0])
    stage = Stage(algorithm, judge, duration_s=10.0)
    stage.first_cost_s = 1000.0
    stage.returns = [1.0, 2.0]
    assert not stage.step()
    stage.elapsed_s = 10.0
    stage.selection.conclude(1.0)
    (order,) = judge.orders
    assert (order.members, len(order.seeds), order.screening) == ((1,), 8, False)
    assert set(stage.selection.candidates) == {1}


def test_looks_have_fewer_episodes_where_episodes_are_dear(algorithm):
    """A whole look at two members costs 16 s of a round of 100 s; a look in its middle may take 5 s
    of the 20 s."""
    judge = ScriptedJudge([[5, 1]], [], delayed=True)
    stage = Stage(algorithm, judge, duration_s=100.0)
    stage.first_cost_s = 16.0
    stage.elapsed_s = 69.0
    assert stage.step()
    assert len(judge.orders[0].seeds) == 2


def test_a_candidate_with_long_episodes_is_not_begun_where_the_fraction_does_not_pay_for_them(
    algorithm,
):
    """Of the 4 s the look takes 1 s. 32 mean episodes cost 2 s, but 32 of the best member's cost
    3.6 s: they are nine times as long as the other's."""

    class Lasting(ScriptedJudge):
        def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
            answers = super().poll(timeout_s)
            for index, answer in enumerate(answers):
                if len(answer.results) == 2:
                    long, short = answer.results
                    lengths = (90,) * long.episodes
                    answers[index] = replace(
                        answer, results=(replace(long, lengths=lengths), short)
                    )
            return answers

    judge = Lasting([[5, 1]], [5.5, 1.5], cost_s=1.0)
    stage = Stage(algorithm, judge, duration_s=20.0)
    stage.elapsed_s = 20.0
    stage.selection.conclude(1.0)
    fulls = [(order.members, len(order.seeds)) for order in judge.orders if not order.screening]
    assert fulls == [((0,), 8), ((1,), 8)]


class BreakingJudge(ScriptedJudge):
    """Of member 0, as many episodes break as stay intact."""

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        members = {order.order_id: order.members for order in self.orders}
        return [
            replace(
                answer,
                results=tuple(
                    one
                    if member
                    else replace(
                        one, broken_numbers=one.episodes, first_break="step 3: the reward was nan"
                    )
                    for member, one in zip(members[answer.order_id], answer.results, strict=True)
                ),
            )
            for answer in super().poll(timeout_s)
        ]


@pytest.mark.parametrize("breaks", [True, False])
def test_a_member_that_breaks_more_episodes_than_the_others_gains_nothing(algorithm, breaks):
    judge = (BreakingJudge if breaks else ScriptedJudge)(
        [[9, 3], [9, 3]], [9.0, 3.0], comparisons={1.0: 9.0, 2.0: 9.0}
    )
    stage = Stage(algorithm, judge, target=4.0, statistic="mean")
    stage.step()
    stage.step()
    if not breaks:
        assert stage.selection.confirmed is not None
        return
    assert stage.selection.confirmed is None
    assert stage.selection.breaks.exceed(0)
    assert not stage.selection.breaks.exceed(1)
    with_breaks = stage.selection.candidates[0].result
    assert with_breaks.mean == 9.0
    assert stage.selection.breaks.counted(with_breaks).mean == (9.0 + 2.0) / 2, (
        "2 is the lowest return of all"
    )


class BesideJudge(ScriptedJudge):
    """In a process beside training: an answer comes after as long as its episodes take."""

    beside = True

    def __init__(self, episode_s: float) -> None:
        super().__init__([], [0.0] * 10, delayed=True)
        self.stage: Stage | None = None
        self.episode_s = episode_s

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        assert self.stage is not None
        self.cost_s = (
            sum(len(order.members) * len(order.seeds) for order in self.waiting) * self.episode_s
        )
        self.released = self.stage.elapsed_s >= self.stage.selection._busy_since_s + self.cost_s
        self.looks.extend([[0.0, 0.0]])
        return super().poll()


# with many cores; with two; of a slow machine
@pytest.mark.parametrize("episode_s", [0.005, 0.2, 1.0])
@pytest.mark.parametrize("plan", [{}, {"duration_s": None, "target": 9.0}])
def test_looks_beside_training_come_every_few_seconds(algorithm, episode_s, plan):
    """However little of the fraction the round's end would leave for them."""
    judge = BesideJudge(episode_s)
    stage = judge.stage = Stage(algorithm, judge, **{"duration_s": 150.0, **plan})
    looked: list[float] = []
    while stage.elapsed_s < 100.0:
        stage.elapsed_s += 0.1
        stage.steps += 10
        if stage.selection.step():
            looked.append(stage.elapsed_s)
    assert all(after - before <= 5.0 for before, after in itertools.pairwise([0.0, *looked, 100.0]))
    assert stage.selection.spent_s == 0.0


class RandomJudge(ScriptedJudge):
    """Its answers come from random numbers of a seed; some are lost."""

    def __init__(self, seed: int, *, delayed: bool) -> None:
        super().__init__([], [], delayed=delayed, cost_s=0.2)
        self.random, self.released = random.Random(seed), True

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        ready = self.waiting if not self.delayed or self.random.random() < 0.5 else []
        answers = []
        for order in ready:
            few = order.first_episodes > 0 and self.random.random() < 0.4
            seeds = order.seeds[: order.first_episodes] if few else order.seeds
            results = tuple(result(self.random.gauss(4, 2), seeds) for _ in order.members)
            lost = self.random.random() < 0.15
            answers.append(
                EvaluationAnswer(
                    order.order_id, () if lost else results, self.cost_s * len(order.members)
                )
            )
        self.waiting = [order for order in self.waiting if order not in ready]
        return answers


def told(order: EvaluationOrder) -> str:
    """An order as `look 8`, or what is evaluated: member@mark, its episodes, and what they have to
    reach."""
    if order.screening:
        return f"look {len(order.seeds)}"
    limits = {"admission": order.admission_score, "target": order.required_score}
    reach = "".join(f" {name} {score:g}" for name, score in limits.items() if score is not None)
    return (
        f"{order.members[0]}@{marked(order.actor):g} "
        f"{len(order.seeds)}/{order.first_episodes}{reach}"
    )


@pytest.mark.parametrize(
    ("seed", "delayed", "plan", "orders"),
    [
        (
            1,
            False,
            {"duration_s": 20.0, "admission_score": 3.0},
            "9 × look 8, look 4, 0@12 8/8 admission 3",
        ),
        (
            2,
            False,
            {"duration_s": 20.0, "target": 7.0, "episodes": 16},
            "2 × look 8, 0@2 16/8 target 7, 6 × look 8, 1@10 16/8",
        ),
        (
            3,
            True,
            {"duration_s": 30.0},
            "9 × look 8, 1@3 8/0, 1@16 8/0, 1@18 8/0, 1@27 8/0, 1@3 32/0, 0@20 8/0",
        ),
        (
            4,
            True,
            {"duration_s": 30.0, "target": 9.5, "evaluation_fraction": 0.4},
            "16 × look 8, 1@19 8/0, 1@5 8/0, 1@6 8/0, 1@24 8/0, 0@24 8/0, 0@10 8/0, 0@17 8/0, 0@5 "
            "8/0, 1@19 32/0, 0@24 32/0",
        ),
        (
            5,
            False,
            {"duration_s": None, "env_steps": 150, "target": 8.5},
            "9 × look 8, look 4, 1@13 8/8",
        ),
    ],
)
def test_orders_of_rounds_with_random_answers(algorithm, seed, delayed, plan, orders):
    """Whoever changes these changes the policy."""
    judge = RandomJudge(seed, delayed=delayed)
    stage = Stage(algorithm, judge, **plan)
    while stage.elapsed_s < (plan["duration_s"] or 15.0) and stage.selection.confirmed is None:
        stage.step()
    stage.selection.conclude(1.0)
    runs = [(text, len(list(equal))) for text, equal in itertools.groupby(map(told, judge.orders))]
    assert ", ".join(text if count == 1 else f"{count} × {text}" for text, count in runs) == orders
