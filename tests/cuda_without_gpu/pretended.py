"""Cohorts on tensors of a CUDA device that is not there: nothing is computed, but everything is
where it would be.

`FakeTensorMode` raises where a CPU tensor meets a CUDA one, and where the host asks for a value.
Added here: a copy between host and device raises in what would be a CUDA graph, and tensors are
counted from one update to the next. Not seen: capture itself, streams, Warp, CUDA IPC, numbers."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from podracer_core.algorithms import (
    Algorithm,
    CohortConfig,
    MemberConfig,
    algorithm_class,
    off_policy,
)
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import VecEnvironment, make_vec_environment
from podracer_core.evaluate import GreedyEvaluator, evaluator
from podracer_core.training import take_snapshot

MEMBERS, ENVS = 2, 4
SMALL = {
    "hidden_sizes": (8, 8), "batch_size": 4, "minibatch_size": 8, "epochs": 1, "h_term_steps": 2,
    "learning_starts": 4, "updates_per_step": 0.25, "replay_capacity": 64,
}  # fmt: skip

MODE = FakeTensorMode()  # one for all: tensors of two never meet


class Captured(TorchDispatchMode):
    """What may not happen in a CUDA graph raises."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        # the last in inference mode
        if operation._schema.name in ("aten::copy_", "aten::_to_copy", "aten::to"):
            places = {
                leaf.device.type
                for leaf in tree_leaves((args, result))
                if isinstance(leaf, torch.Tensor)
            }
            if len(places) > 1:
                raise RuntimeError(f"{operation} between host and device within a CUDA graph")
        return result


def capture(work: Callable[[], Any], device: torch.device) -> tuple[Any, Callable[[], None]]:
    """See `cuda_graphs.capture`; what is replayed is looked at again."""

    def checked() -> Any:
        with Captured():
            return work()

    result, is_first = checked(), True

    def replay() -> None:
        nonlocal is_first
        if not is_first:
            checked()
        is_first = False

    return result, replay


@contextlib.contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    monkeypatch.setattr("podracer_core.device.capture", capture)
    monkeypatch.setattr("podracer_core.device.WARM_UP", 1)
    monkeypatch.setattr(off_policy, "_STEPS_AT_ONCE", 2)
    monkeypatch.setattr("podracer_core.device.free_bytes", lambda device: None)
    monkeypatch.setattr(evaluator, "STEPS_AT_ONCE", 2)
    # after as many steps as a graph has
    monkeypatch.setattr(evaluator, "_have_ended", lambda running: True)
    monkeypatch.setattr(evaluator._IntactEpisodes, "take", lambda self, *_: self.open.clear())
    monkeypatch.setattr(evaluator._IntactEpisodes, "results", lambda _, in_time: ())
    monkeypatch.setattr(evaluator, "_with_statistics", lambda results, *_: results)
    gc.freeze()  # what is collected and counted is what comes from here on
    with MODE:
        yield


def make_algorithm(name: str, environment: VecEnvironment, shared: dict[str, Any]) -> Algorithm:
    cohort = CohortConfig(
        name, tuple(MemberConfig(str(seed), seed) for seed in range(MEMBERS)), shared
    )
    return algorithm_class(name)(
        cohort, environment.observation_space, environment.action_space, "cuda"
    )


def train(name: str, environment: VecEnvironment, shared: dict[str, Any]) -> None:
    """Everything that a learner does with a cohort. Raises what it must not do, AssertionError for
    what grows."""
    algorithm = make_algorithm(name, environment, shared)
    spaces = (environment.observation_space, environment.action_space)
    actor = algorithm.make_actor(algorithm.cohort, *spaces, "cuda")
    actor.load_state(algorithm.actor_state())
    collector = Collector(environment, actor, torch.arange(MEMBERS), buffers=2)
    alive = []
    for _ in range(3):  # one warms up, one is captured, one is replayed
        rollout = collector.collect(algorithm.horizon, policy_version=algorithm.version)
        algorithm.update(rollout)
        alive.append(tensors_alive())
    assert alive[2] <= alive[1], f"tensors alive after each update: {alive}"
    algorithm.load_member_state(1, algorithm.member_state(0))
    algorithm.perturb_member(0, 0.1, 1)
    algorithm.set_hyperparameters(0, {"learning_rate": 1e-4})
    collector.load_state(collector.state())
    algorithm.update(rollout)  # of an older policy, as an overlapping learner has it
    sharing = algorithm.share(1)
    sharing.growth()
    sharing.load(sharing.state())
    sharing.settle()
    alone = algorithm.actor.member(1)
    alone.greedy(
        rollout.observation[0, 1:],
        None if rollout.action_mask is None else rollout.action_mask[0, 1:],
    )


def evaluate(name: str, specification: EnvironmentSpec, shared: dict[str, Any]) -> None:
    """The looks at a cohort, and the episodes of snapshots of one member; these stay on the
    device."""
    evaluator = GreedyEvaluator(
        lambda count: make_vec_environment(specification, count, "cuda", evaluation=True)
    )
    environment = make_vec_environment(specification, MEMBERS * ENVS, "cuda")
    algorithm = make_algorithm(name, environment, shared)
    moment = SimpleNamespace(env_steps=[0] * MEMBERS, version=0)
    moment.elapsed_s = 0.0
    for _ in range(3):  # once in full, once captured, once replayed
        evaluator.evaluate(algorithm.actor, [1, 2, 3], block_rows=3)
        snapshot = take_snapshot(algorithm, 1, moment)  # type: ignore[arg-type]
        copied = tree_leaves((snapshot.actor.state(), snapshot.state["actor"]))
        assert {tensor.device.type for tensor in copied} == {"cuda"}
        evaluator.evaluate(snapshot.actor, [1, 2, 3])


def tensors_alive() -> int:
    gc.collect()
    return sum(type(thing) is FakeTensor for thing in gc.get_objects())
