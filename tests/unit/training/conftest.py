"""Small cohorts on CartPole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from podracer_core.algorithms import Algorithm, CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.training import InProcessBackend, InProcessSource, RoundPlan, TrainingSession

SPEC = EnvironmentSpec(id="CartPole-v1")
SHARED = {"horizon": 16, "minibatch_size": 64, "epochs": 2, "hidden_sizes": (16, 16)}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_algorithm() -> Callable[..., Algorithm]:
    def make(seeds: Sequence[int] = (1, 2), **shared: Any) -> Algorithm:
        cohort = CohortConfig(
            "ppo", tuple(MemberConfig(f"a{s}", s) for s in seeds), SHARED | shared
        )
        environment = make_vec_environment(SPEC, 1)
        return algorithm_class("ppo")(
            cohort, environment.observation_space, environment.action_space
        )

    return make


@pytest.fixture
def make_collector() -> Callable[..., Collector]:
    def make(algorithm: Algorithm, envs: int = 4, **options: Any) -> Collector:
        environment = make_vec_environment(SPEC, algorithm.members * envs)
        seeds = torch.tensor([member.seed for member in algorithm.cohort.members])
        return Collector(environment, algorithm.actor, seeds, **options)

    return make


@pytest.fixture
def make_session(
    make_algorithm: Callable[..., Algorithm], make_collector: Callable[..., Collector]
) -> Callable[..., TrainingSession]:
    def make(seeds: Sequence[int] = (1, 2), envs: int = 4, **plan: Any) -> TrainingSession:
        algorithm = make_algorithm(seeds)
        source = InProcessSource(make_collector(algorithm, envs), algorithm)
        judge = InProcessBackend(partial(make_vec_environment, SPEC))
        return TrainingSession(
            algorithm, source, judge, RoundPlan(**plan), episode_steps=lambda: 500
        )

    return make
