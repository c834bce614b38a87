"""Evaluations: their statistics, and that a stored return comes out again exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import gymnasium
import pytest
import torch
from torch import Tensor

from podracer_core.algorithms import PPO, CohortConfig, MemberConfig
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import CartPole, Pendulum, Step, VecEnvironment
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.errors import InvalidInput, TimeUp
from podracer_core.evaluate import EvaluationResult, GreedyEvaluator
from podracer_core.networks import NetworkActor
from podracer_core.random_numbers import evaluation_seeds
from tests.support.graph_recorder import captures, use_recorder

ENVIRONMENTS: dict[str, Callable[..., VecEnvironment]] = {
    "CartPole": CartPole,
    "Pendulum": Pendulum,
}
SEEDS = evaluation_seeds(0, 0, 40)
BOTH = pytest.mark.parametrize("name", ENVIRONMENTS)


def actor(name: str, *seeds: int) -> NetworkActor:
    """Policies with weights of some size, so that they act differently."""
    environment = ENVIRONMENTS[name](1)
    cohort = CohortConfig("ppo", tuple(MemberConfig(str(seed), seed) for seed in seeds))
    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    algorithm.actor.network.weights[-1].mul_(100)
    return algorithm.actor


def test_statistics_by_hand():
    result = EvaluationResult((1.0, 2.0, 3.0, 6.0), (1, 1, 1, 1), (1, 2, 3, 4))
    assert result.mean == 3.0
    assert result.std == pytest.approx(math.sqrt(14 / 3))
    assert result.upper_bound - 3.0 == pytest.approx(3.1824 * math.sqrt(14 / 3) / 2, abs=1e-4)
    assert result.lower_bound == pytest.approx(6.0 - result.upper_bound)


def test_one_episode_proves_nothing_and_equal_ones_prove_all():
    assert EvaluationResult((5.0,), (1,), (1,)).lower_bound == -math.inf
    assert EvaluationResult((5.0,) * 3, (1,) * 3, (1, 2, 3)).lower_bound == 5.0
    with pytest.raises(InvalidInput):
        EvaluationResult((1.0,), (1, 2), (1,))


@BOTH
def test_returns_equal_gymnasiums_with_the_exported_policy(name):
    """Episode by episode in Gymnasium's own environment, from the same first state."""
    mine = actor(name, 4)
    (result,) = GreedyEvaluator(ENVIRONMENTS[name]).evaluate(mine, SEEDS[:3])
    policy = mine.policy(0)
    batch = ENVIRONMENTS[name](3)
    observation = batch.reset(torch.tensor(SEEDS[:3]))
    for episode in range(3):
        environment = gymnasium.make(f"{name}-v1")
        environment.reset()
        first = observation[episode].double().numpy()
        state = first if name == "CartPole" else [math.atan2(first[1], first[0]), first[2]]
        environment.unwrapped.state = state
        seen, total, length, ended = observation[episode], 0.0, 0, False
        while not ended:
            action = policy(seen[None])[0].numpy()
            values, reward, terminated, truncated, _ = environment.step(action)
            seen, ended = torch.as_tensor(values, dtype=torch.float32), terminated or truncated
            total, length = total + float(reward), length + 1
        assert length == result.lengths[episode]
        assert total == pytest.approx(result.returns[episode], rel=1e-3, abs=1e-2)


@BOTH
def test_the_same_seeds_give_the_same_returns_in_any_company(name):
    cohort, evaluator = actor(name, 4, 5, 6), GreedyEvaluator(ENVIRONMENTS[name])
    together = evaluator.evaluate(cohort, SEEDS)
    assert len({result.returns for result in together}) == 3
    for m in range(3):
        for fresh in (evaluator, GreedyEvaluator(ENVIRONMENTS[name])):
            (alone,) = fresh.evaluate(cohort.member(m), SEEDS)
            assert alone == together[m]
    (few,) = evaluator.evaluate(cohort.member(1), SEEDS[:3])
    # Another number of environments may round a sine differently, never more.
    assert few.returns == pytest.approx(together[1].returns[:3], rel=1e-6)


@BOTH
def test_the_number_of_threads_does_not_matter(name):
    results = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        results.append(GreedyEvaluator(ENVIRONMENTS[name]).evaluate(actor(name, 4), SEEDS))
    assert results[0] == results[1]


def test_only_a_few_sets_of_environments_are_kept():
    made: list[int] = []

    class Counted(Pendulum):
        def close(self) -> None:
            made.remove(self.num_envs)

    def make(count: int) -> VecEnvironment:
        made.append(count)
        return Counted(count, max_episode_steps=3)

    one, evaluator = actor("Pendulum", 4), GreedyEvaluator(make)
    for episodes in (1, 2, 3, 1, 4, 5, 6, 7, 8, 9):
        evaluator.evaluate(one, SEEDS[:episodes])
    assert made == [1, 3, 4, 5, 6, 7, 8, 9]
    evaluator.close()
    assert not made


def test_an_environment_without_a_time_limit_is_cut_off():
    class CutAfter21(Pendulum):
        evaluation_steps = 21

    evaluator = GreedyEvaluator(lambda count: CutAfter21(count, max_episode_steps=None))
    (result,) = evaluator.evaluate(actor("Pendulum", 4), SEEDS[:3])
    assert (result.lengths, result.cut) == ((21, 21, 21), 3)
    with pytest.raises(InvalidInput, match="seed"):
        evaluator.evaluate(actor("Pendulum", 4), [])
    evaluator.close()


@pytest.mark.parametrize(("steps", "lengths", "cut"), [(30, (17, 23), 0), (10, (10, 10, 10), 3)])
def test_when_time_is_up_unfinished_episodes_are_left_out_or_cut_if_none_is_finished(
    steps, lengths, cut, monkeypatch
):
    taken: list[int] = []

    class Lengths(Pendulum):  # of 17, 40 and 23 steps
        def step(self, action: Tensor, out: Step | None = None) -> Step:
            taken.append(1)
            return replace(
                super().step(action, out), truncated=torch.tensor([17, 40, 23]) <= len(taken)
            )

    def check() -> None:
        if len(taken) >= steps:
            raise TimeUp("over")

    monkeypatch.setattr("podracer_core.evaluate.evaluator.STEPS_AT_ONCE", 1)
    evaluator = GreedyEvaluator(lambda count: Lengths(count, max_episode_steps=None), check=check)
    (result,) = evaluator.evaluate(actor("Pendulum", 4), SEEDS[:3])
    assert (result.lengths, result.cut) == (lengths, cut)
    assert list(result.seeds) == (SEEDS[:3] if cut else [SEEDS[0], SEEDS[2]])
    with pytest.raises(TimeUp):
        evaluator.evaluate(actor("Pendulum", 4), SEEDS[3:6], first_row=3)


def test_an_environment_whose_episode_has_ended_is_not_stepped_where_it_can_stand_still():
    spec = EnvironmentSpec(
        entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=200
    )
    asked: list[bool] = []

    class Watched(PreprocessVecEnv):
        def play_once(self) -> bool:
            asked.append(super().play_once())
            return asked[-1]

    evaluator = GreedyEvaluator(lambda count: Watched(spec, count, processes=1))
    results = [evaluator.evaluate(actor("CartPole", 4), SEEDS[:4]) for _ in range(2)]
    assert results[0] == results[1]
    assert asked == [True, True]
    evaluator.close()


def as_on_a_gpu(name: str) -> Callable[[int], VecEnvironment]:
    """Environments whose host does not look at what happens."""

    def make(count: int) -> VecEnvironment:
        environment = ENVIRONMENTS[name](count, max_episode_steps=53)
        environment._starts, environment.can_diverge = None, False  # type: ignore[attr-defined]
        return environment

    return make


@BOTH
@pytest.mark.parametrize("graph_safe", [True, False])
def test_on_a_gpu_graphs_play_the_same_episodes(name, graph_safe, monkeypatch):
    """Whole steps, or the policy where the environment cannot be captured; of policies that came
    after the capture."""
    monkeypatch.setattr(ENVIRONMENTS[name], "graph_safe", graph_safe)
    cohort, make = actor(name, 4, 5, 6), as_on_a_gpu(name)
    orders = [cohort, *(cohort.member(m) for m in range(3)), actor(name, 7, 8, 9), cohort]
    expected = [
        GreedyEvaluator(make).evaluate(one, SEEDS[: 3 + index]) for index, one in enumerate(orders)
    ]
    use_recorder(monkeypatch)
    evaluator = GreedyEvaluator(make)
    # of 3 members with 3 episodes each there are as many environments as of one with 9
    for _ in range(3):
        for index, one in enumerate(orders):
            assert evaluator.evaluate(one, SEEDS[: 3 + index]) == expected[index]
    first = len(captures)
    assert first >= len(orders) if graph_safe else first
    assert min(captures) > 10, "more than one launch less"
    for index, one in enumerate(orders[:-2]):
        assert evaluator.evaluate(one, SEEDS[: 3 + index]) == expected[index]
    assert len(captures) == first, "the graphs are there"
