"""Algorithms on a CUDA device: the numbers of a CPU, no gradient step that waits for the device,
and fusions."""

from __future__ import annotations

import pytest
import torch

from podracer_core.algorithms import Algorithm, CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import BUILT_IN_ALGORITHMS, DiscreteSpace
from podracer_core.collect import Collector
from podracer_core.environments import CartPole, Pendulum
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.fusion import Contribution, FusionOptions, Mean, fuse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
OFF_POLICY = sorted(name for name, info in BUILT_IN_ALGORITHMS.items() if not info.on_policy)
MEMBERS, ENVS = 3, 4


def trained(name: str, device: str, updates: int, replay: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The actors' weights before and after some updates, of one gradient step each where experience
    is replayed."""
    shared = {"hidden_sizes": (32, 32), "horizon": 2}
    if name in OFF_POLICY:
        steps = {"updates_per_step": 1 / (2 * ENVS)}
        shared |= {
            "batch_size": 16,
            "learning_starts": 16,
            "replay": replay,
            "prioritized": replay == "member",
        } | steps
    cohort = CohortConfig(
        name, tuple(MemberConfig(str(seed), seed) for seed in range(MEMBERS)), shared
    )
    discrete = BUILT_IN_ALGORITHMS[name].on_policy or BUILT_IN_ALGORITHMS[name].action_spaces == (
        DiscreteSpace,
    )
    environment = (CartPole if discrete else Pendulum)(MEMBERS * ENVS, device)
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space, device
    )
    collector = Collector(environment, algorithm.actor, torch.arange(MEMBERS, device=device))
    before = weights(algorithm)
    for update in range(updates):
        rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
        if update == updates - 1 and device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            algorithm.update(rollout)
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    return before, weights(algorithm)


def weights(algorithm: Algorithm) -> torch.Tensor:
    return torch.cat(
        [tensor.flatten().float().cpu() for tensor in algorithm.actor.state().values()]
    )


@pytest.mark.parametrize(
    ("name", "replay"),
    [*((name, "member") for name in ["ppo", "a2c", *OFF_POLICY]), ("sac", "mixed")],
)
def test_the_same_as_on_a_cpu_by_graphs_and_without_a_wait(name, replay, caplog):
    """Weights differ by a small part of their way: Adam makes a whole step of a slope that is
    nothing but rounding."""
    updates = 10 if name in OFF_POLICY else 5
    start, found = trained(name, "cuda", updates, replay)
    same_start, wanted = trained(name, "cpu", updates, replay)
    torch.testing.assert_close(start, same_start, rtol=1e-3, atol=1e-5)
    assert float((found - wanted).abs().mean() / (wanted - same_start).abs().mean()) < 0.01
    assert "could not be captured" not in caplog.text


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_learner_brings_and_takes_over_what_lies_on_a_cpu(name):
    """As followers do: their lead fuses on its CPU."""
    cohort = CohortConfig(name, (MemberConfig("a", 1),), {"hidden_sizes": (32, 32), "horizon": 2})
    environment = (CartPole if name == "ppo" else Pendulum)(ENVS, "cuda")
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space, "cuda"
    )
    sharing = algorithm.share(1)
    collector = Collector(environment, algorithm.actor, torch.arange(1, device="cuda"))
    state = sharing.state().to("cpu")
    algorithm.update(collector.collect(2))
    brought = Contribution(1, 1, 8, sharing.growth().to("cpu"))
    sharing.load(fuse(Mean(FusionOptions()), state, [brought]))
    assert sharing.transitions.tolist() == [2 * ENVS]
    for key, tensor in sharing.state().parameters.items():
        torch.testing.assert_close(tensor.cpu(), brought.growth.parameters[key])


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_an_evaluation_by_graphs_has_the_returns_of_one_without(name, caplog, monkeypatch):
    make = CartPole if name == "ppo" else Pendulum
    environment = make(1, "cuda")
    cohort = CohortConfig(name, tuple(MemberConfig(str(seed), seed) for seed in range(MEMBERS)))
    algorithm = algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space, "cuda"
    )

    def returns() -> list[list[float]]:
        evaluator = GreedyEvaluator(lambda count: make(count, "cuda", max_episode_steps=53))
        found = []
        for member in (None, 0, 1, None, 2, 0):
            actor = algorithm.actor if member is None else algorithm.actor.member(member)
            found += [list(result.returns) for result in evaluator.evaluate(actor, range(5))]
        evaluator.close()
        return found

    by_graphs = returns()
    assert "could not be captured" not in caplog.text
    monkeypatch.setattr("podracer_core.device.can_capture", lambda device: False)
    torch.testing.assert_close(
        torch.tensor(by_graphs), torch.tensor(returns()), rtol=1e-3, atol=1e-3
    )
