"""Environments that begin at ages of their own: their time limits fall apart, in training alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.algorithms import PPO, CohortConfig, MemberConfig
from podracer_core.collect import Collector
from podracer_core.environments import Pendulum
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import first_ages

LIMIT, ENVS, SEEDS = 12, 40, [3, 4]


class Unaged(Pendulum):
    """Its time limit is out of reach."""

    def set_ages(self, ages: Tensor) -> bool:
        return False


class Restarting(Pendulum):
    """It cannot go on within an episode, like a user's that is no batch."""

    resumes_episodes = False

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        return self.reset(state["seed"])


def collector(kind: type[Pendulum] = Pendulum, limit: int = LIMIT) -> Collector:
    environment = kind(len(SEEDS) * ENVS, max_episode_steps=limit)
    cohort = CohortConfig(
        "ppo", tuple(MemberConfig(str(seed), seed) for seed in SEEDS), {"hidden_sizes": (8,)}
    )
    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    return Collector(environment, algorithm.actor, torch.tensor(SEEDS))


def test_limits_fall_apart_and_episodes_cut_short_are_not_counted():
    mine = collector()
    first = mine.collect(LIMIT)
    truncated, whole = first.truncated.clone(), first.episodes.count.clone()
    assert (truncated.sum(0) == 1).all()
    assert (truncated.sum(2) < ENVS // 3).all()
    assert not first.terminated.any()
    assert torch.equal(whole, truncated[-1].sum(-1))  # who began at age 0
    assert torch.equal(first.episodes.length_sum, whole * LIMIT)
    second = mine.collect(LIMIT)
    assert torch.equal(second.truncated, truncated)
    assert second.episodes.count.tolist() == [ENVS, ENVS]
    assert second.episodes.length_sum.tolist() == [ENVS * LIMIT] * 2


def test_ages_are_even_and_below_the_limit():
    keys = torch.arange(12_000).view(3, -1)
    ages = first_ages(keys, LIMIT)
    assert ages.shape == keys.shape
    assert (ages.flatten().bincount() - 1000).abs().max() < 150
    assert len(ages.flatten().bincount()) == LIMIT
    assert first_ages(keys, (1 << 63) - 1).min() >= 0


def test_where_it_is_not_possible_all_episodes_are_whole():
    rollout = collector(Unaged).collect(LIMIT)
    assert rollout.episodes.count.tolist() == [ENVS, ENVS]
    assert rollout.truncated[-1].all()


def test_where_episodes_begin_anew_they_have_ages_again():
    through, resumed = collector(Restarting), collector(Restarting)
    fresh = through.collect(LIMIT).truncated.clone()
    resumed.load_state(through.state())
    rollout = resumed.collect(LIMIT)
    assert torch.equal(rollout.truncated, fresh)
    assert torch.equal(rollout.episodes.count, fresh[-1].sum(-1))


def test_an_evaluation_has_whole_episodes():
    actor = collector().actor
    for result in GreedyEvaluator(lambda count: Pendulum(count, max_episode_steps=LIMIT)).evaluate(
        actor, [1, 2, 3]
    ):
        assert [int(length) for length in result.lengths] == [LIMIT] * 3
