"""MuJoCo's environments on MuJoCo Warp: the same tasks as on C MuJoCo, and steps that a CUDA graph
can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import Step, allocate_step, make_vec_environment
from podracer_core.environments.mujoco import MuJoCoEnvironment, load_model, model_for_warp

slow = pytest.mark.slow
IDS = [
    "Ant-v5",
    "HalfCheetah-v5",
    pytest.param("Hopper-v5", marks=slow),
    pytest.param("Humanoid-v5", marks=slow),
    pytest.param("Walker2d-v5", marks=slow),
]
needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
on_cpu = pytest.mark.xdist_group("warp")  # one process compiles Warp's kernels, once


def make(
    environment_id: str,
    num_envs: int = 4,
    limit: int | None = None,
    *,
    on: str = "warp",
    device: str = "cpu",
) -> MuJoCoEnvironment:
    spec = EnvironmentSpec(id=environment_id, kwargs={"engine": on}, max_episode_steps=limit)
    environment = make_vec_environment(spec, num_envs, device)
    assert isinstance(environment, MuJoCoEnvironment)
    return environment


def actions(environment: MuJoCoEnvironment, steps: int) -> Tensor:
    """[steps, N, nu], mostly within the bounds, a few beyond."""
    generator = torch.Generator().manual_seed(3)
    high = torch.tensor(environment.action_space.high)
    noise = torch.randn(steps, environment.num_envs, high.numel(), generator=generator)
    return (0.5 * high * noise).to(environment.device)


def values(step: Step) -> dict[str, Tensor]:
    found = {each.name: getattr(step, each.name) for each in fields(step)}
    return {name: value.clone() for name, value in found.items() if value is not None}


def assert_same(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], rows: Any = slice(None)
) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value[rows], other[name][rows]), name


@on_cpu
@pytest.mark.parametrize("environment_id", IDS)
def test_a_task_is_the_same_on_both_engines(environment_id, monkeypatch):
    """Same episodes' starts, observations, rewards and ends, with the friction cones and the solver
    of Warp on both. A state that was saved is the one that is loaded."""
    monkeypatch.setattr(
        "podracer_core.environments.mujoco.environment.load_model",
        lambda xml_file: model_for_warp(load_model(xml_file)),
    )
    ours, theirs = make(environment_id, limit=8), make(environment_id, limit=8, on="mujoco")
    seeds = torch.arange(4)
    torch.testing.assert_close(ours.reset(seeds), theirs.reset(seeds), rtol=1e-5, atol=1e-5)
    ends = 0
    for action in actions(ours, 20):
        one, other = values(ours.step(action)), values(theirs.step(action))
        ends += int(one["truncated"].sum())
        assert one["valid"].all()
        for name, value in one.items():
            # Velocities of Humanoid's inertia reach hundreds; a joint that stops takes a float32's
            # rounding with it.
            torch.testing.assert_close(
                value, other[name], rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert ends >= 8
    fresh, saved = make(environment_id, limit=8), ours.state()
    fresh.reset(seeds + 7)
    fresh.load_state(saved)
    assert_same(fresh.state(), saved)


@on_cpu
def test_a_broken_world_starts_anew_and_is_counted():
    environment, sound = make("Ant-v5"), make("Ant-v5")
    for each in (environment, sound):
        each.reset(torch.arange(4))
    plan = actions(environment, 8)
    for action in plan[:3]:
        environment.step(action)
        sound.step(action)
    environment.physics.field("qvel")[2, 5] = torch.nan
    step, other = values(environment.step(plan[3])), values(sound.step(plan[3]))
    rows = torch.arange(4) != 2
    assert_same(step, other, rows)
    assert step["valid"].tolist() == [True, True, False, True]
    assert bool(step["truncated"][2])
    assert not bool(step["terminated"][2])
    assert float(step["reward"][2]) == 0
    assert not step["final_observation"][2].any()
    for action in plan[4:]:
        step, other = values(environment.step(action)), values(sound.step(action))
        assert step["valid"].all()
        assert_same(step, other, rows)
    assert environment.broken_count.tolist() == [0, 0, 1, 0]


class GraphSafe(TorchDispatchMode):
    """Fails on what a CUDA graph cannot hold: waiting for a value or a size, and constants that
    come from the host."""

    FORBIDDEN = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "equal",
        "unique",
        "lift_fresh",
        "is_nonzero",
    )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        assert not name.startswith(self.FORBIDDEN), name
        if name.startswith("index"):
            masks = (
                [index for index in args[1] if index is not None and index.dtype == torch.bool]
                if args[1:]
                else []
            )
            assert not masks, f"{name} by a mask"
        return func(*args, **(kwargs or {}))


@on_cpu
@pytest.mark.parametrize("environment_id", IDS)
def test_the_way_of_a_cuda_device_waits_for_nothing_and_comes_to_the_same(
    environment_id, monkeypatch
):
    """The code for CUDA, run on a CPU: episodes end, a world breaks, and every tensor stays where
    it is."""
    plain, graphed = make(environment_id, limit=6), make(environment_id, limit=6)
    for each in (plain, graphed):
        each.reset(torch.arange(4))
    monkeypatch.setattr(graphed, "device", torch.device("cuda"))
    monkeypatch.setattr(graphed, "_starts", None)
    place = {name: value.data_ptr() for name, value in values_in_place(graphed).items()}
    for number, action in enumerate(actions(plain, 15)):
        if number == 9:
            for each in (plain, graphed):
                each.physics.field("qvel")[0, 1] = torch.inf
        with GraphSafe():
            step = values(graphed.step(action))
        assert_same(step, values(plain.step(action)))
    assert_same(graphed.state(), plain.state())
    assert plain.broken_count.tolist() == [1, 0, 0, 0]
    assert place == {name: value.data_ptr() for name, value in values_in_place(graphed).items()}


def values_in_place(environment: MuJoCoEnvironment) -> dict[str, Tensor]:
    step = environment._own_step
    own = {each.name: getattr(step, each.name) for each in fields(step)}
    tensors = {
        name: value
        for part in (environment, environment._episodes)
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }
    return tensors | {name: value for name, value in own.items() if value is not None}


class TestOnCUDA:
    pytestmark = needs_cuda

    @pytest.mark.parametrize(
        "environment_id", ["Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Walker2d-v5"]
    )
    def test_a_replayed_graph_does_what_the_step_does(self, environment_id):
        """Ends, breaks and counters exactly; numbers to rounding: a GPU adds contacts up in any
        order."""
        graphed = make(environment_id, 64, 12, device="cuda")
        eager = make(environment_id, 64, 12, device="cuda")
        eager._replay = lambda: eager._advance(eager._own_step)
        seeds = torch.arange(64, device="cuda")
        torch.testing.assert_close(graphed.reset(seeds), eager.reset(seeds))
        slot = allocate_step(graphed)
        for number, action in enumerate(actions(graphed, 15)):
            if number == 5:
                for each in (graphed, eager):
                    each.physics.field("qvel")[3, 1] = torch.nan
            one, other = values(graphed.step(action, slot)), values(eager.step(action))
            assert one.keys() == other.keys()
            for name in ("terminated", "truncated", "valid"):
                assert torch.equal(one[name], other[name]), name
            near = (one["final_observation"] - other["final_observation"]).abs().amax(1) < 1e-2
            assert int(near.sum()) >= 60
        assert graphed.broken_count.sum() == 1
        assert torch.equal(graphed.state()["episode"], eager.state()["episode"])

    def test_a_step_waits_for_nothing(self):
        environment = make("Ant-v5", 64, 12, device="cuda")
        environment.reset(torch.arange(64, device="cuda"))
        plan = actions(environment, 15)
        for action in plan[:2]:
            environment.step(action)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for action in plan[2:]:
                environment.step(action)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_another_graph_takes_the_step_in(self):
        """As a learner would capture a rollout."""
        graphed, eager = make("Ant-v5", 16, device="cuda"), make("Ant-v5", 16, device="cuda")
        eager._replay = lambda: eager._advance(eager._own_step)
        plan = actions(graphed, 6)
        for each in (graphed, eager):
            each.reset(torch.arange(16, device="cuda"))
            each.step(plan[0])
        action, out = plan[0].clone(), allocate_step(graphed)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            graphed.step(action, out)
        for each in plan[1:]:
            action.copy_(each)
            graph.replay()
            expected = eager.step(each)
        near = (out.final_observation - expected.final_observation).abs().amax(1) < 1e-2
        assert int(near.sum()) >= 15

    def test_ppo_learns_on_ant_from_start_to_end_on_the_device(self):
        cohort = CohortConfig("ppo", (MemberConfig("one", 0),), {"hidden_sizes": (32, 32)})
        environment = make("Ant-v5", 128, device="cuda")
        algorithm = algorithm_class("ppo")(
            cohort, environment.observation_space, environment.action_space, "cuda"
        )
        collector = Collector(environment, algorithm.actor, torch.arange(1, device="cuda"))
        before = {name: value.clone() for name, value in algorithm.actor.state().items()}
        for _ in range(3):
            metrics = algorithm.update(
                collector.collect(algorithm.horizon, policy_version=algorithm.version)
            )
        assert all(value.is_cuda and value.isfinite().all() for value in metrics.values())
        assert any(
            not torch.equal(value, before[name]) for name, value in algorithm.actor.state().items()
        )
        assert environment.broken_count.sum() == 0
