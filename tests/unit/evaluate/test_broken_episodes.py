"""Evaluation episodes whose world breaks have no return: others take their place, and nothing gains
by them."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import CartPole, Pendulum, State, TorchEnvironment, VecEnvironment
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.errors import UserCodeFailed
from podracer_core.evaluate import (
    EvaluationResult,
    GreedyEvaluator,
    result_from_json,
    result_to_json,
)
from podracer_core.networks import NetworkActor
from podracer_core.random_numbers import uniform
from podracer_platform.training_messages import result_from_message, result_to_message


class Dice(TorchEnvironment):
    """Ten steps of -1; the worlds whose first number lies below `broken` become NaN in the
    fourth."""

    broken = 0.5

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        box = gymnasium.spaces.Box(-1, 11, (2,), np.float32)
        super().__init__(num_envs, device, box, gymnasium.spaces.Discrete(2), 10)

    def initial_state(self, key: Tensor) -> State:
        first = uniform(key, 0)
        return {"observation": torch.stack([first, torch.zeros_like(first)])}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        first, age = state["observation"]
        age = age + 1
        age = torch.where((first < self.broken) & (age == 4), torch.nan, age)
        return (
            {"observation": torch.stack([first, age])},
            -torch.ones_like(age),
            torch.zeros_like(age, dtype=torch.bool),
        )


class Fragile(gymnasium.Env[Any, Any]):
    """Raises in the second step of the episodes of some seeds, with others at the start."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed, self.steps = seed, 0
        return np.full(1, np.nan if seed == 3 else 0.0, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.seed == 1 and self.steps == 2:
            raise KeyError("price")
        return np.zeros(1, np.float32), 1.0, self.steps == 4, False, {}


def actor(kind: type[VecEnvironment] = Dice, members: int = 1) -> NetworkActor:
    environment = kind(1, device="cpu")  # type: ignore[call-arg]
    cohort = CohortConfig(
        "ppo", tuple(MemberConfig(str(member), member) for member in range(members))
    )
    made = algorithm_class("ppo")(
        cohort, environment.observation_space, environment.action_space, "cpu"
    )
    assert isinstance(made.actor, NetworkActor)
    return made.actor


def test_a_broken_episode_is_replaced_in_the_same_way_every_time():
    seeds = range(64)
    (first,) = GreedyEvaluator(Dice).evaluate(actor(), seeds)
    (again,) = GreedyEvaluator(Dice).evaluate(actor(), seeds)
    in_company = GreedyEvaluator(Dice).evaluate(actor(members=3), seeds)
    assert first == again == in_company[0]
    assert set(first.returns) == {-10.0}, "not -3"
    # 1 of 2 breaks, of the others 1 of 2 again, and so on; an eighth is left out
    assert 40 < first.broken_numbers < 72
    assert 50 <= first.episodes < 64
    assert set(first.seeds) < set(seeds)
    assert (first.broken_code, first.first_break) == (
        0,
        "step 4: the world's numbers were not finite",
    )
    counted = first.counted(-12.0)
    assert counted.episodes == first.episodes + first.broken
    assert min(counted.returns) == -12.0


def test_exceptions_and_failed_starts_are_told_apart():
    def made(count):
        return PreprocessVecEnv(EnvironmentSpec(entry_point="here:Fragile"), count, make=Fragile)

    (result,) = GreedyEvaluator(made).evaluate(actor_for(Fragile), range(5))
    assert result.returns == (4.0,) * 5
    assert (result.broken_numbers, result.broken_code) == (1, 1)
    assert result.first_break == "reset: observation[0] was nan"


def actor_for(kind: type[gymnasium.Env[Any, Any]]) -> NetworkActor:
    cohort = CohortConfig("ppo", (MemberConfig("0", 0),))
    made = algorithm_class("ppo")(cohort, kind.observation_space, kind.action_space, "cpu")
    assert isinstance(made.actor, NetworkActor)
    return made.actor


def test_an_environment_that_always_breaks_is_an_error(monkeypatch):
    evaluator = GreedyEvaluator(Dice)
    monkeypatch.setattr(Dice, "broken", 2.0)
    with pytest.raises(UserCodeFailed, match="episodes broke"):
        evaluator.evaluate(actor(), range(4))
    monkeypatch.setattr(Dice, "broken", 0.0)
    evaluator.evaluate(actor(), range(4))
    monkeypatch.setattr(Dice, "broken", 2.0)
    (result,) = evaluator.evaluate(actor(), range(4))
    assert (result.returns, result.broken) == ((), 12), "it has worked, so this policy is at fault"


@pytest.mark.parametrize("kind", [Pendulum, CartPole])
def test_a_policy_with_nan_has_no_return(kind):
    """Its actions tell it; those of discrete spaces cannot, so there its weights do."""
    acting = actor(kind, members=2)
    acting.network.weights[-1][1].fill_(torch.nan)
    evaluator = GreedyEvaluator(kind)
    sound, wild = evaluator.evaluate(acting, range(5))
    assert (sound.episodes, sound.broken) == (5, 0)
    text = "step 1: the policy's action was not finite"
    assert (wild.returns, wild.broken_numbers, wild.first_break) == ((), 5, text)
    assert (wild.mean, wild.std, wild.lower_bound, wild.upper_bound) == (
        -math.inf,
        0.0,
        -math.inf,
        -math.inf,
    )
    (alone,) = GreedyEvaluator(kind).evaluate(acting.member(1), range(5))
    assert alone == wild
    assert wild.counted(3.0).mean == 3.0
    assert wild.counted(math.inf) is wild
    message, stored = result_to_message(wild), result_to_json(wild)
    assert (
        (message.mean, message.lower_bound) == (stored["mean"], stored["upper_bound"]) == (0.0, 0.0)
    )
    assert result_from_message(message) == result_from_json(stored) == wild


def test_results_add_up():
    none = EvaluationResult((), (), (), 2, 1, "step 1: KeyError: 'price'")
    some = EvaluationResult((1.0,), (1,), (7,))
    both = none + some
    assert (both.returns, both.broken, both.first_break) == ((1.0,), 3, "step 1: KeyError: 'price'")
