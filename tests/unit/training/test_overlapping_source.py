"""Collecting and training at once in one process: on a CPU one after the other, in the same
order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from podracer_core.algorithms import Algorithm
from podracer_core.buffers import Rollout
from podracer_core.collect import Collector
from podracer_core.environments import make_vec_environment
from podracer_core.training import InProcessSource, OverlappingSource
from podracer_core.training import source as source_module
from tests.unit.training.conftest import SPEC

UPDATES = 6


def overlapping(algorithm: Algorithm, ahead: int | None) -> OverlappingSource:
    environment = make_vec_environment(SPEC, algorithm.members * 4)
    actor = algorithm.make_actor(
        algorithm.cohort, environment.observation_space, environment.action_space
    )
    seeds = torch.tensor([member.seed for member in algorithm.cohort.members])
    return OverlappingSource(Collector(environment, actor, seeds, buffers=2), algorithm, ahead)


def weights(algorithm: Algorithm) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in algorithm.actor_state().values()])


def test_in_lock_step_it_is_as_if_nothing_overlapped(make_algorithm, make_collector):
    one, other = make_algorithm(), make_algorithm()
    sources = InProcessSource(make_collector(one), one), overlapping(other, 0)
    for _ in range(UPDATES):
        for algorithm, source in zip((one, other), sources, strict=True):
            rollout = source.collect()
            assert rollout.policy_version == algorithm.version
            algorithm.update(rollout)
    assert torch.equal(weights(one), weights(other))
    assert sources[1].environment_states() is not None


def test_ahead_each_rollout_is_of_the_weights_before(make_algorithm):
    """The same as by hand: rollout k + 1 is taken before the update on rollout k."""
    one, other = make_algorithm(), make_algorithm()
    source, by_hand = overlapping(one, 1), overlapping(other, 0)
    waiting = None
    for update in range(UPDATES):
        rollout = source.collect()
        assert one.version - rollout.policy_version == min(update, 1) == source.staleness
        observation = rollout.observation.clone()
        one.update(rollout)
        present = waiting if waiting is not None else by_hand._begin()
        waiting = by_hand._begin()
        assert torch.equal(rollout.observation, observation), (
            "the next rollout has a buffer of its own"
        )
        assert torch.equal(observation, present.observation)
        other.update(present)
    assert torch.equal(weights(one), weights(other))
    assert source.environment_states() is None, "they are a rollout further already"
    assert source.figures == {"staleness": 1, "collected_ahead": 1}
    source.close()
    source.close()


@pytest.mark.parametrize("hidden", [False, True])
def test_by_itself_it_finds_out(make_algorithm, monkeypatch, hidden):
    """Where collecting ahead hides nothing it does not pay; by a clock that does not depend on the
    machine: a rollout takes a second, and so does an update."""
    now_s = 0.0
    monkeypatch.setattr(source_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    algorithm = make_algorithm()
    source = overlapping(algorithm, None)
    begin = source._begin

    def begin_in_time() -> Rollout:
        nonlocal now_s
        now_s += 0.0 if hidden and source.figures["collected_ahead"] else 1.0
        return begin()

    monkeypatch.setattr(source, "_begin", begin_in_time)
    tried = set()
    for _ in range(30):
        algorithm.update(source.collect())
        now_s += 1.0
        tried.add(source.figures["collected_ahead"])
    assert (tried, source.figures["collected_ahead"]) == ({0, 1}, int(hidden))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ahead", [0, 1])
def test_two_streams_do_what_one_does(make_algorithm, ahead):
    def trained(device: str) -> torch.Tensor:
        cpu = make_algorithm()
        environment = make_vec_environment(SPEC, cpu.members * 4, device)
        spaces: tuple[Any, Any] = (environment.observation_space, environment.action_space)
        algorithm = type(cpu)(cpu.cohort, *spaces, device)
        collector = Collector(
            environment,
            algorithm.make_actor(cpu.cohort, *spaces, device),
            torch.tensor([1, 2]),
            buffers=2,
        )
        source = OverlappingSource(collector, algorithm, ahead)
        for _ in range(5):
            algorithm.update(source.collect())
        found = weights(algorithm).cpu()
        source.close()
        return found

    torch.testing.assert_close(trained("cuda"), trained("cpu"), rtol=1e-3, atol=1e-4)
