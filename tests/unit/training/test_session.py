"""A round in process: budgets, counters, the target, and that it can be taken up again bit for
bit."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from podracer_core.buffers import Rollout
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import Step, VecEnvironment, make_vec_environment
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.training import (
    InProcessBackend,
    InProcessSource,
    RoundPlan,
    TrainingSession,
    resume,
    resume_environments,
)


def test_a_budget_of_steps_ends_with_the_rollout_that_reaches_it(make_session):
    session = make_session(env_steps=100)
    while not session.finished:
        session.step()
    assert session.moment().env_steps == [128, 128]  # two rollouts of 16 steps in 4 environments
    assert session.progress().updates == 2


class SteppedClock:
    """A clock that stands still but for the steps of environments."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        return self.now_s

    def environment(self, count: int, device: torch.device | str = "cpu") -> VecEnvironment:
        environment = make_vec_environment(EnvironmentSpec(id="CartPole-v1"), count, device)
        take = environment.step

        def step(action: Tensor, out: Step | None = None) -> Step:
            self.now_s += self._step_s
            return take(action, out)

        environment.step = step  # type: ignore[method-assign]
        return environment


@pytest.mark.parametrize(
    ("step_s", "told_at_s", "env_steps"),
    [(1.0, math.inf, 72), (1.0, 5.0, 20), (200.0, math.inf, 4)],
)
def test_a_rollout_that_is_longer_than_the_time_ends_early_and_counts(
    make_algorithm, step_s, told_at_s, env_steps
):
    """Of 20 s evaluation keeps a part, and at first the update 10 %: 13 steps, then 5 more."""
    algorithm, clock = make_algorithm(), SteppedClock(step_s)
    collector = Collector(clock.environment(8), algorithm.actor, torch.tensor([1, 2]))
    session = TrainingSession(
        algorithm,
        InProcessSource(collector, algorithm),
        InProcessBackend(clock.environment),
        RoundPlan(duration_s=20.0),
        clock=clock,
        processor_clock=clock,
        told_to_end=lambda: clock.now_s >= told_at_s,
    )
    while not session.finished:
        session.step()
    assert session.moment().env_steps == [env_steps, env_steps]
    assert session.ended_by == "seconds"
    session.conclude()
    assert session.elapsed_s <= max(20.0, step_s) if told_at_s > 20.0 else told_at_s + 2.5


def test_an_easy_target_ends_the_round_with_a_confirmed_member(make_session):
    session = make_session(duration_s=60.0, target=8.0, statistic="mean", episodes=10)
    while not session.finished:
        session.step()
    assert session.confirmed is not None
    assert session.confirmed.result.episodes == 10
    assert session.confirmed.result.mean >= 8.0
    assert session.confirmed.confirm_time_s <= session.elapsed_s
    outcome = session.conclude()[session.confirmed.member]
    assert outcome.candidate is session.confirmed


def test_every_member_gets_a_candidate_at_the_end(make_session):
    session = make_session(seeds=(1, 2, 3), env_steps=64, episodes=12)
    while not session.finished:
        session.step()
    outcomes = session.conclude()
    assert [outcome.member for outcome in outcomes] == [0, 1, 2]
    for outcome in outcomes:
        assert outcome.candidate is not None
        assert outcome.candidate.result.episodes == 12
        assert outcome.env_steps == 64
        assert outcome.environment is not None


class EverySecondHalf(InProcessSource):
    """Half of the environments do not answer every other time."""

    rollouts = 0

    @property
    def figures(self) -> dict[str, float]:
        return {"rollouts": self.rollouts}

    def collect(self) -> Rollout:
        rollout = super().collect()
        self.rollouts += 1
        if self.rollouts % 2:
            return rollout
        valid = rollout.valid.clone()
        valid[:, :, 2:] = False
        return replace(rollout, valid=valid, answered=2)


def test_only_steps_that_were_taken_count_for_the_budget(make_algorithm, make_collector):
    algorithm = make_algorithm()
    source = EverySecondHalf(make_collector(algorithm), algorithm)
    session = TrainingSession(algorithm, source, None, RoundPlan(env_steps=2 * 64 + 2 * 32))
    while not session.finished:
        session.step()
    assert source.rollouts == 4
    assert session.moment().env_steps == [192, 192]
    assert session.progress().metrics["rollouts"] == [4, 4], (
        "a source's own figures are told with the metrics"
    )


def test_without_a_judge_a_round_only_trains(make_algorithm, make_collector):
    algorithm = make_algorithm()
    source = InProcessSource(make_collector(algorithm), algorithm)
    session = TrainingSession(algorithm, source, None, RoundPlan(env_steps=64))
    while not session.finished:
        session.step()
    assert all(outcome.candidate is None for outcome in session.conclude())


def test_a_candidates_returns_come_again_from_its_snapshot(make_session):
    session = make_session(env_steps=64, episodes=12)
    while not session.finished:
        session.step()
    candidate = session.conclude()[1].candidate
    assert candidate is not None
    assert candidate.snapshot is not None
    evaluator = GreedyEvaluator(partial(make_vec_environment, EnvironmentSpec(id="CartPole-v1")))
    (again,) = evaluator.evaluate(candidate.snapshot.actor, candidate.result.seeds)
    assert again.returns == candidate.result.returns


def test_a_round_in_two_halves_is_bit_for_bit_one_round(
    make_session, make_algorithm, make_collector
):
    whole = make_session(env_steps=64 * 6)
    while not whole.finished:
        whole.step()
    expected = whole.outcomes()

    first = make_session(env_steps=64 * 3)
    while not first.finished:
        first.step()
    algorithm = make_algorithm()
    kept = first.outcomes()
    for outcome in kept:
        resume(algorithm, outcome.member, outcome.state)
    steps = torch.stack([outcome.state["random"]["step_count"] for outcome in kept])
    collector = make_collector(algorithm, first_step=steps, session=steps)
    resume_environments(collector, [outcome.environment for outcome in kept])
    second = TrainingSession(
        algorithm, InProcessSource(collector, algorithm), None, RoundPlan(env_steps=64 * 3)
    )
    while not second.finished:
        second.step()
    for found, wanted in zip(second.outcomes(), expected, strict=True):
        for group, tensors in wanted.state.items():
            for name, tensor in tensors.items():
                assert torch.equal(found.state[group][name], tensor), (group, name)
        assert wanted.environment is not None
        assert found.environment is not None
        for name, tensor in wanted.environment.items():
            assert torch.equal(found.environment[name], tensor), name


def test_training_returns_are_those_of_the_last_rollouts(make_session):
    session = make_session(env_steps=64 * 8)
    assert all(value != value for value in session.progress().returns), (
        "NaN before an episode has ended"
    )
    while not session.finished:
        session.step()
    assert all(8 <= value <= 500 for value in session.progress().returns)


def test_training_returns_stay_known_while_no_episode_ends(make_session):
    session = make_session(env_steps=64 * 8)
    while not session.finished:
        session.step()
    known = session.progress().returns
    session._counts._episodes.clear()  # as after a long time without an end
    session._counts._episodes.append(
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.float64))
    )
    assert all(8 <= value <= 500 for value in session.progress().returns)
    assert all(8 <= value <= 500 for value in known)


@pytest.mark.parametrize(
    "plan",
    [{}, {"duration_s": 1.0, "evaluation_fraction": 0.0}, {"duration_s": 1.0, "episodes": 0}],
    ids=["no end", "no evaluation", "no episodes"],
)
def test_an_impossible_plan_is_refused(plan):
    with pytest.raises(InvalidInput):
        RoundPlan(**plan)  # type: ignore[arg-type]


def test_a_first_look_is_taken_to_cost_what_so_few_environments_cost(make_session):
    """The pace is that of all environments of a member, of which a look may have far fewer."""
    estimates = []
    for envs in (8, 32):
        session = make_session(envs=envs, env_steps=64, screening_episodes=8)
        session.step()
        session._collect_s = 1.0
        session._counts._ended.zero_()
        estimates.append(session._first_look_s())
        # by each of two members, that have taken 16 steps in each environment
        session._counts._ended.fill_(2)
        assert session._first_look_s() == 16 * envs / 2 / 16 * 8 / envs, (
            "as long as episodes of training"
        )
    assert estimates == [500 / 16, 500 / 16 / 4]


def test_a_budget_of_cost_counts_processor_seconds_of_the_source_too(
    make_algorithm, make_collector
):
    algorithm = make_algorithm()
    source = InProcessSource(make_collector(algorithm), algorithm)
    own_s = 100.0
    session = TrainingSession(
        algorithm, source, None, RoundPlan(cost_s=10.0), processor_clock=lambda: own_s
    )
    for _ in range(2):
        assert not session.finished
        session.step()
        own_s += 3.0
        source.used_s += 2.0
    assert session.progress().used_s == 10.0
    assert session.finished
