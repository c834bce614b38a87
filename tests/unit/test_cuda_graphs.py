"""Work that is recorded once and replayed: the same results, wherever host and device may part."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from podracer_core.algorithms import (
    Algorithm,
    CohortConfig,
    MemberConfig,
    algorithm_class,
    off_policy,
)
from podracer_core.buffers import Replay, replay
from podracer_core.catalogue import BUILT_IN_ALGORITHMS, DiscreteSpace
from podracer_core.collect import Collector
from podracer_core.device import (
    WARM_UP,
    CaptureFailed,
    Graphed,
    map_tensors,
    tensors_of,
)
from podracer_core.environments import CartPole, Pendulum
from podracer_core.networks import ActorCritic, StackedResidual
from tests.support.graph_recorder import captures, use_recorder

CPU = torch.device("cpu")
MEMBERS, ENVS = 3, 4
OFF_POLICY = sorted(name for name, info in BUILT_IN_ALGORITHMS.items() if not info.on_policy)


@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: Tensor | None
    times: int


def test_without_a_device_that_has_graphs_it_is_a_plain_call():
    total = torch.zeros(2)
    add = Graphed(lambda pair: total.add_(pair.left * pair.times), CPU)
    for _ in range(WARM_UP + 3):
        assert add(Pair(torch.ones(2), None, 2)) is total
    assert total.tolist() == [10.0, 10.0]


def test_what_is_replayed_reads_what_is_given_now(monkeypatch):
    use_recorder(monkeypatch)
    state, calls = torch.zeros(2), []

    def work(pair: Pair, sign: int) -> Tensor:
        calls.append(sign)
        state.add_(pair.left, alpha=sign * pair.times)
        return state * 10

    step = Graphed(work, CPU)
    given = [torch.tensor([float(index), 1.0]) for index in range(WARM_UP + 4)]
    results = [step(Pair(left, None, 1), 1).tolist() for left in given]
    assert results == [
        [10.0 * sum(range(index + 1)), 10.0 * (index + 1)] for index in range(len(given))
    ]
    assert len(calls) == WARM_UP + 1
    assert len(captures) == 1
    before = state.tolist()
    for _ in range(WARM_UP + 2):  # another form is another graph
        step(Pair(given[0], None, 1), -1)
    assert state.tolist() == [before[0], before[1] - WARM_UP - 2]
    assert len(captures) == 2


def test_to_forget_is_to_capture_anew(monkeypatch):
    use_recorder(monkeypatch)
    factor = 1.0
    scaled = Graphed(lambda pair: pair.left * factor, CPU)
    ones = Pair(torch.ones(1), None, 1)
    for _ in range(WARM_UP + 1):
        scaled(ones)
    factor = 3.0
    assert scaled(ones).item() == 1.0, "a graph knows nothing of the host's numbers"
    scaled.forget()
    assert [scaled(ones).item() for _ in range(WARM_UP + 2)] == [3.0] * (WARM_UP + 2)


def test_where_a_capture_fails_it_goes_on_without_and_says_so_once(monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise CaptureFailed from RuntimeError("operation not permitted when stream is capturing")

    use_recorder(monkeypatch)
    monkeypatch.setattr("podracer_core.device.capture", refuse)
    total = torch.zeros(1)
    add = Graphed(lambda pair: total.add_(pair.left), CPU)
    for _ in range(WARM_UP + 3):
        add(Pair(torch.ones(1), None, 1))
    assert total.item() == WARM_UP + 3
    assert [record.getMessage().count("not permitted") for record in caplog.records] == [1]


def test_tensors_of_a_record():
    pair = Pair(torch.ones(1), None, 3)
    assert list(tensors_of(pair)) == [pair.left]
    doubled = map_tensors(pair, lambda tensor: tensor * 2)
    assert (doubled.left.tolist(), doubled.right, doubled.times) == ([2.0], None, 3)


def trained(name: str, updates: int, **more: object) -> Tensor:
    """The actors' weights after some updates, hyperparameters having changed on the way."""
    shared = {"hidden_sizes": (16, 16), "horizon": 4, **more}
    cohort = CohortConfig(
        name, tuple(MemberConfig(str(seed), seed) for seed in range(MEMBERS)), shared
    )
    discrete = BUILT_IN_ALGORITHMS[name].on_policy or BUILT_IN_ALGORITHMS[name].action_spaces == (
        DiscreteSpace,
    )
    environment = (CartPole if discrete else Pendulum)(
        MEMBERS * ENVS, "cpu", max_episode_steps=None
    )
    environment._starts, environment.can_diverge = None, False  # a GPU does not look
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space
    )
    collector = Collector(environment, algorithm.actor, torch.arange(MEMBERS))
    for update in range(updates):
        metrics = algorithm.update(
            collector.collect(algorithm.horizon, policy_version=algorithm.version - update % 2)
        )
        if update == updates // 2:
            algorithm.set_hyperparameters(1, {"learning_rate": 1e-2, "max_gradient_norm": 0.1})
    tensors = [*algorithm.actor.state().values(), *metrics.values(), *collector.state().values()]
    return torch.cat([tensor.flatten().double() for tensor in tensors])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ppo", {"normalize_values": True, "minibatch_size": 5, "epochs": 2}),
        ("a2c", {}),
        *(
            (name, {"batch_size": 8, "learning_starts": 16, "updates_per_step": 0.25})
            for name in OFF_POLICY
        ),
        (
            "d3qn",
            {"batch_size": 8, "learning_starts": 16, "prioritized": True, "target_interval": 3},
        ),
        ("redq", {"batch_size": 8, "learning_starts": 16, "updates_per_step": 2}),
    ],
)
def test_training_by_graphs_is_training(monkeypatch, name, more):
    expected = trained(name, 10, **more)
    use_recorder(monkeypatch)
    monkeypatch.setattr(replay, "_may_read_values", lambda device: False)
    monkeypatch.setattr(off_policy, "_STEPS_AT_ONCE", 3)
    torch.testing.assert_close(trained(name, 10, **more), expected, rtol=0, atol=0, equal_nan=True)
    assert len(captures) >= 2, "collecting and updating"


@pytest.mark.parametrize(
    "shared", [{"normalize_rewards": True, "epochs": 2}, {"desired_kl": 0.01}], ids=str
)
def test_what_is_resumed_goes_on_exactly(monkeypatch, shared):
    """From copies of all state, in a learner and an environment that are new, beside the ones that
    went on."""
    use_recorder(monkeypatch)
    cohort = CohortConfig(
        "ppo", tuple(MemberConfig(str(seed), seed) for seed in range(MEMBERS)), shared
    )

    def begin() -> tuple[Algorithm, Collector]:
        environment = CartPole(MEMBERS * ENVS, "cpu")
        environment._starts = None
        algorithm = algorithm_class("ppo")(
            cohort, environment.observation_space, environment.action_space
        )
        return algorithm, Collector(environment, algorithm.actor, torch.arange(MEMBERS))

    def train(algorithm: Algorithm, collector: Collector) -> list[Tensor]:
        for _ in range(WARM_UP + 3):
            algorithm.update(collector.collect(16, policy_version=algorithm.version))
        return [*algorithm.actor.state().values(), *collector.state().values()]

    algorithm, collector = begin()
    train(algorithm, collector)
    states, state = [algorithm.member_state(member) for member in range(MEMBERS)], collector.state()
    assert len(captures) == 2
    other, beside = begin()
    for member, own in enumerate(states):
        other.load_member_state(member, own)
    other.version = algorithm.version
    beside.load_state(state)
    for ours, theirs in zip(train(algorithm, collector), train(other, beside), strict=True):
        assert torch.equal(ours, theirs)


def test_priorities_are_drawn_from_in_the_graph(monkeypatch):
    use_recorder(monkeypatch)
    monkeypatch.setattr(replay, "_may_read_values", lambda device: False)
    draws, sample = [], Replay.sample_prioritized
    monkeypatch.setattr(
        Replay,
        "sample_prioritized",
        lambda self, *arguments: draws.append(1) or sample(self, *arguments),
    )
    trained(
        "dqn",
        10,
        batch_size=8,
        learning_starts=16,
        prioritized=True,
        target_interval=1,
        updates_per_step=0.5,
    )
    assert len(draws) == 2 * (WARM_UP + 1), (
        "all others are replayed; once the hyperparameters changed"
    )


def test_an_h_term_looks_at_the_host_and_has_no_graph(monkeypatch):
    expected = trained("ppo", 8, h_term="k_step")
    use_recorder(monkeypatch)
    torch.testing.assert_close(
        trained("ppo", 8, h_term="k_step"), expected, rtol=0, atol=0, equal_nan=True
    )
    assert len(captures) == 1, "collecting alone"


def test_what_stands_on_a_class_that_has_graphs_says_so_for_itself():
    class Own(CartPole):
        pass

    assert CartPole.graph_safe
    assert not Own.graph_safe


@pytest.mark.parametrize("name", ["ppo", "a2c", *OFF_POLICY])
def test_nothing_in_training_waits_for_the_device(monkeypatch, name):
    """Tensors on the meta device have no values: reading one would raise."""
    for network in (ActorCritic, StackedResidual):
        monkeypatch.setattr(network, "initialize", lambda *_: None)  # on a CPU, always
    shared = {"hidden_sizes": (16, 16), "horizon": 4}
    if name in OFF_POLICY:
        shared |= {"batch_size": 8, "learning_starts": 8, "updates_per_step": 0.25}
    cohort = CohortConfig(
        name, tuple(MemberConfig(str(seed), seed) for seed in range(MEMBERS)), shared
    )
    discrete = BUILT_IN_ALGORITHMS[name].on_policy or BUILT_IN_ALGORITHMS[name].action_spaces == (
        DiscreteSpace,
    )
    environment = (CartPole if discrete else Pendulum)(MEMBERS * ENVS, "meta")
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space, "meta"
    )
    collector = Collector(environment, algorithm.actor, torch.arange(MEMBERS, device="meta"))
    for _ in range(2):
        metrics = algorithm.update(
            collector.collect(algorithm.horizon, policy_version=algorithm.version - 1)
        )
    assert all(value.device.type == "meta" for value in metrics.values())
