"""Run in a process of its own with guard.cpp loaded, by test_cuda_without_gpu.py: pytest does not
collect it here."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.buffers import PriorityTree, allocate_rollout
from podracer_core.catalogue import (
    BUILT_IN_ALGORITHMS,
    DiscreteSpace,
    EnvironmentSpec,
    known_environments,
)
from podracer_core.collect import Collector
from podracer_core.environments import (
    CartPole,
    Pendulum,
    State,
    TorchEnvironment,
    VecEnvironment,
    make_vec_environment,
)
from podracer_core.networks import NetworkActor, stacked_mlp
from podracer_core.random_numbers import uniform
from support.carts import Carts, CartsHere
from support.stock_market import market_rows, write_csv
from tests.cuda_without_gpu.kernel_count import counted
from tests.cuda_without_gpu.pretended import (
    ENVS,
    MEMBERS,
    SMALL,
    evaluate,
    make_algorithm,
    pretended,
    train,
)

ARGUMENTS: dict[str, dict[str, Any]] = {"PointChasingDiscrete-v0": {"factored": True}}
# Gradient steps of an update, where some move more than others or several are one graph.
KINDS_OF_STEPS = {"sac": 2, "td3": 2, "crossq": 3, "flash_sac": 2}
# Numbers that lead to code of their own where they are not the default.
NUMBERS = {
    "n_step": 3,
    "ensemble_size": 3,
    "value_clip_range": 0.2,
    "target_kl": 0.01,
    "desired_kl": 0.01,
    "max_gradient_norm": 0.5,
}


@pytest.fixture(scope="session", autouse=True)
def guard() -> None:
    ctypes.CDLL(os.environ["LD_PRELOAD"]).pretend_cuda()
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with pretended(monkeypatch):
        yield


def options(name: str, variant: int) -> dict[str, Any]:
    """0: all defaults; 1 and 2: other choices and switches. In 1 and 2 every choice of every option
    is there."""
    knobs = [
        knob
        for knob in BUILT_IN_ALGORITHMS[name].hyperparameters
        if knob.scope != "member" or knob.name in NUMBERS
    ]
    small = SMALL | {"horizon": 2 if BUILT_IN_ALGORITHMS[name].on_policy else 1}
    values = {knob.name: small.get(knob.name, knob.default) for knob in knobs}
    # all in each update, so that what is captured in the second is replayed in the third
    if name in KINDS_OF_STEPS:
        values["updates_per_step"] = SMALL["updates_per_step"] * KINDS_OF_STEPS[name]
    for knob in knobs:
        if knob.kind == "choice":
            values[knob.name] = (knob.default, knob.choices[1], knob.choices[-1])[variant]
        if knob.kind == "bool" and variant == 1:
            values[knob.name] = not knob.default
        if knob.name in NUMBERS and variant == 1:
            values[knob.name] = NUMBERS[knob.name]
    if values.get("prioritized"):
        values["replay"] = "member"  # the one excludes the other
    return values


def specification_of(name: str) -> EnvironmentSpec:
    discrete = BUILT_IN_ALGORITHMS[name].action_spaces == (DiscreteSpace,)
    return EnvironmentSpec(id="CartPole-v1" if discrete else "Pendulum-v1")


def environment_of(name: str) -> VecEnvironment:
    return make_vec_environment(specification_of(name), MEMBERS * ENVS, "cuda")


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_defaults(name):
    train(name, environment_of(name), options(name, 0))
    evaluate(name, specification_of(name), options(name, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("variant", [1, 2])
@pytest.mark.parametrize("name", BUILT_IN_ALGORITHMS)
def test_algorithm(name, variant):
    train(name, environment_of(name), options(name, variant))


@pytest.mark.thorough
def test_mixed_replay():
    """Which variant 1 cannot have, as it is prioritized."""
    train("sac", environment_of("sac"), options("sac", 0) | {"replay": "mixed"})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "identity",
    [
        info.id
        for info in known_environments().values()
        if info.backend == "torch" and info.id != "mjlab"
    ],
)
def test_environment(identity, tmp_path):
    arguments = dict(ARGUMENTS.get(identity, {}))
    if identity == "StockTrading-v0":
        arguments = {
            "table": str(write_csv(tmp_path / "prices.csv", market_rows(3, 90))),
            "indicators": ["macd"],
        }
    specification = EnvironmentSpec(id=identity, kwargs=arguments)
    environment = make_vec_environment(specification, MEMBERS * ENVS, "cuda")
    collector = Collector(
        environment,
        make_algorithm("a2c", environment, options("a2c", 0)).actor,
        torch.arange(MEMBERS),
    )
    for _ in range(3):
        collector.collect(2)
    collector.load_state(collector.state())
    evaluate("a2c", specification, options("a2c", 0))


class Pictures(TorchEnvironment):
    """Noise to look at, and actions that are not allowed."""

    has_action_mask = True

    def __init__(self) -> None:
        space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        super().__init__(MEMBERS * ENVS, "cuda", space, gymnasium.spaces.Discrete(3), 5)

    def initial_state(self, key: Tensor) -> State:
        return {"brightness": uniform(key, 0)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        return state, action.float(), state["brightness"] > 1

    def observe(self, state: State, out: Tensor) -> None:
        out.copy_((state["brightness"] * 255).view(-1, 1, 1, 1).expand_as(out))

    @property
    def action_mask(self) -> Tensor:
        return torch.ones(self.num_envs, 3, dtype=torch.bool, device=self.device)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo", "dqn", "discrete_sac"])
def test_images_and_masks(name):
    train(name, Pictures(), options(name, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("variant", [0, 1])
def test_a_simulator_whose_critic_sees_more(variant, monkeypatch):
    monkeypatch.delattr(Carts, "seed")  # the one number that the host asks for, at the first reset
    train("ppo", CartsHere(MEMBERS * ENVS, "cuda"), options("ppo", variant))


# What the suite is for: each of these has to be found.


def planted(match: str, error: type[Exception] = RuntimeError, name: str = "ppo") -> None:
    with pytest.raises(error, match=match):
        train(name, environment_of("dqn"), options(name, 0))


PLANTS = [
    (lambda tensor: tensor.sum().item(), "_local_scalar_dense"),
    (lambda tensor: tensor + torch.zeros(tensor.shape), "cuda:0 and cpu"),
    (lambda tensor: tensor + torch.ones(tensor.shape).to(tensor.device), "within a CUDA graph"),
]


@pytest.mark.parametrize(("plant", "match"), PLANTS)
def test_a_planted_mistake_is_found(plant, match, monkeypatch):
    dynamics = CartPole.dynamics

    def mistaken(self: CartPole, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        plant(action)
        return dynamics(self, state, action)

    monkeypatch.setattr(CartPole, "dynamics", mistaken)
    planted(match, Exception)


@pytest.mark.parametrize(("plant", "match"), PLANTS)
def test_a_planted_mistake_is_found_in_the_draw_by_priority(plant, match, monkeypatch):
    """Which has to be in the graph: a copy from the host is a mistake only there."""
    find = PriorityTree.find

    def mistaken(self: PriorityTree, part: Tensor) -> tuple[Tensor, Tensor]:
        plant(part)
        return find(self, part)

    monkeypatch.setattr(PriorityTree, "find", mistaken)
    with pytest.raises(Exception, match=match):
        train("dqn", environment_of("dqn"), options("dqn", 0) | {"prioritized": True})


@pytest.mark.parametrize(("plant", "match"), PLANTS)
def test_a_planted_mistake_is_found_in_evaluation(plant, match, monkeypatch):
    greedy = NetworkActor.greedy

    def mistaken(
        self: NetworkActor, observation: Tensor, action_mask: Tensor | None = None
    ) -> Tensor:
        plant(observation)
        return greedy(self, observation, action_mask)

    monkeypatch.setattr(NetworkActor, "greedy", mistaken)
    with pytest.raises(Exception, match=match):
        evaluate("ppo", specification_of("dqn"), options("ppo", 0))


def test_the_pool_of_buffers_that_grew_is_found(monkeypatch):
    pools: dict[tuple[int, torch.Size], list[Tensor]] = {}

    def take(self: object, rows: Tensor, width: int) -> Tensor:
        free = pools.get((threading.get_ident(), torch.Size((*rows.shape[:2], width))))
        return free.pop() if free else rows.new_empty((*rows.shape[:2], width))

    def give(self: object, buffer: Tensor) -> None:
        pools.setdefault((threading.get_ident(), buffer.shape), []).append(buffer.detach())

    monkeypatch.setattr(stacked_mlp._Buffers, "take", take)
    monkeypatch.setattr(stacked_mlp._Buffers, "give", give)
    planted("tensors alive", AssertionError, "a2c")  # has no kernels
    # backward has a thread of its own
    assert threading.get_ident() not in {thread for thread, _ in pools}


class Drift(TorchEnvironment):
    """As a user writes one: two variables, an observation of its own, and an end."""

    graph_safe = True

    def __init__(self, num_envs: int, device: torch.device | str = "cpu") -> None:
        place = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
        super().__init__(
            num_envs, device, place, gymnasium.spaces.Box(-1, 1, (2,), np.float32), 200
        )

    def initial_state(self, key: Tensor) -> State:
        place = torch.stack([uniform(key, 0), uniform(key, 1)]) * 2 - 1
        return {"place": place, "speed": torch.zeros_like(place)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        speed = 0.9 * state["speed"] + 0.1 * action.t()
        place = state["place"] + speed
        distance = place.square().sum(0)
        return {"place": place, "speed": speed}, -distance, distance > 4

    def observe(self, state: State, out: Tensor) -> None:
        out.copy_(torch.cat([state["place"], state["speed"][:1]]).t())


@pytest.mark.thorough
def test_a_round_is_few_kernels(monkeypatch):
    """PPO's on CartPole, 4 epochs of 4 minibatches: by `podracer_core.kernels` and torch's
    compiler."""
    with counted(monkeypatch) as kernels:
        environment = CartPole(16384, "cuda")
        cohort = CohortConfig(
            "ppo", (MemberConfig("0", 0),), {"hidden_sizes": (64, 64), "horizon": 32, "epochs": 4}
        )
        algorithm = algorithm_class("ppo")(
            cohort, environment.observation_space, environment.action_space, "cuda"
        )
        collector = Collector(environment, algorithm.actor, torch.zeros(1, dtype=torch.int64))
        kernels.counts.clear()
        algorithm.update(collector.collect(32))
    assert 300 < kernels.total <= 450, kernels.counts


@pytest.mark.thorough
@pytest.mark.parametrize("make", [Pendulum, Drift])
def test_a_step_is_few_kernels(monkeypatch, make):
    with counted(monkeypatch) as kernels:
        environment = make(4096, "cuda")
        environment.reset(torch.zeros(4096, dtype=torch.int64, device="cuda"))
        environment.compile()
        action = torch.zeros(4096, *environment.action_space.shape, device="cuda")
        kernels.counts.clear()
        environment.step(action)
    assert list(kernels.counts) == ["compiled TorchEnvironment._advance"]
    assert 0 < kernels.total <= 8, kernels.counts


@pytest.mark.thorough
def test_an_update_of_wide_networks_is_few_kernels(monkeypatch):
    """Ant's: 4 epochs of 4 minibatches, 256-128-64."""
    spaces = (
        gymnasium.spaces.Box(-np.inf, np.inf, (105,), np.float32),
        gymnasium.spaces.Box(-1, 1, (8,), np.float32),
    )
    with counted(monkeypatch) as kernels:
        shared = {"hidden_sizes": (256, 128, 64), "horizon": 16, "epochs": 4}
        cohort = CohortConfig("ppo", (MemberConfig("0", 0, {"desired_kl": 0.01}),), shared)
        algorithm = algorithm_class("ppo")(cohort, *spaces, "cuda")
        device = torch.device("cuda")
        rollout = allocate_rollout(
            16, 1, 8192, ((105,), torch.float32), ((8,), torch.float32), device
        )
        kernels.counts.clear()
        algorithm.update(rollout)
    assert 400 < kernels.total <= 640, kernels.counts
