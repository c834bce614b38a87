"""An exported policy acts like the one in the checkpoint, in a process that has torch (or
onnxruntime) and nothing of ours; one that does not is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import spaces
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    READERS,
    WRITERS,
    Checkpoint,
    compare,
    export_policy,
    load_actor,
    load_checkpoint,
    load_policy,
    random_observations,
    save_checkpoint,
)
from podracer_core.environments import from_gymnasium
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.in_process import Policy
from podracer_core.storage import FolderStore
from podracer_policy.policies import ServedPolicy
from support.errors import raises
from support.policies import random_policy, with_origin, with_original_space

Space = gymnasium.Space[Any]
OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (2, 3))
ACTIONS: dict[str, Space] = {
    "box": gymnasium.spaces.Box(
        np.array([-2.0, -np.inf], np.float32), np.array([2.0, np.inf], np.float32)
    ),
    "discrete": gymnasium.spaces.Discrete(4, start=2),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([3, 2, 4], start=[0, 5, 1]),
    "multi_binary": gymnasium.spaces.MultiBinary(3),
}
SHARED = {"hidden_sizes": [16, 8], "activation": "relu", "learning_rate": 1e-3}

CHILD = """
import sys, torch
observation = torch.load(sys.argv[1], weights_only=True)
for path in sys.argv[2:]:
    act = torch.export.load(path).module() if path.endswith(".pt2") else torch.jit.load(path)
    torch.save([act(observation[:size]) for size in (1, 2, 7)], path + ".taken")
assert not any(name.startswith(("podracer", "gymnasium")) for name in sys.modules)
"""

ONNX_CHILD = """
import sys, numpy as np, onnxruntime
observation = np.load(sys.argv[1])
for path in sys.argv[2:]:
    session = onnxruntime.InferenceSession(path)
    np.savez(path + ".npz", *(session.run(None, {"observation": observation[:size]})[0] for size in (1, 2, 7)))
assert not any(name.startswith(("podracer", "gymnasium", "torch")) for name in sys.modules)
"""


FIRST, *OTHERS = ACTIONS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return stored(FIRST, tmp_path / "store")


def stored(actions: str, folder: Path) -> Checkpoint:
    """Of an agent with weights that matter and a normalizer that has seen something, through a
    store and back."""
    torch.set_num_threads(1)
    action_space = ACTIONS[actions]
    cohort = CohortConfig("ppo", (MemberConfig("a", 1), MemberConfig("b", 2)), SHARED)
    algorithm = algorithm_class("ppo")(cohort, OBSERVATIONS, action_space)
    state = {group: dict(tensors) for group, tensors in algorithm.member_state(1).items()}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in state["actor"].items():
        state["actor"][name] = torch.randn(tensor.shape, generator=generator)
    state["normalizer"]["observation_mean"] = torch.randn(6, generator=generator)
    state["normalizer"]["observation_scale"] = torch.rand(6, generator=generator) + 0.5
    metadata = {
        "algorithm": "ppo",
        "hyperparameters": SHARED,
        "observation_space": spaces.to_json(from_gymnasium(OBSERVATIONS)),
        "action_space": spaces.to_json(from_gymnasium(action_space)),
        "agent": "projects/p/jobs/j/agents/a",
    }
    store = FolderStore(folder)
    save_checkpoint(store, "checkpoint/", state, metadata)
    return load_checkpoint(store, "checkpoint/", groups=POLICY_GROUPS)


@pytest.mark.parametrize(
    "kinds", [[FIRST], pytest.param(OTHERS, marks=pytest.mark.thorough)], ids=["box", "choices"]
)
@pytest.mark.parametrize(
    ("format_", "suffix"), [("torch_export", ".pt2"), ("torchscript", ".pt"), ("onnx", ".onnx")]
)
def test_an_export_acts_alike_without_podracer(tmp_path, kinds, format_, suffix):
    observation = 3.0 * torch.randn(
        7, *OBSERVATIONS.shape, generator=torch.Generator().manual_seed(1)
    )
    if format_ == "onnx":
        np.save(given := tmp_path / "given.npy", observation.numpy())
    else:
        torch.save(observation, given := tmp_path / "given")
    checkpoints = {tmp_path / f"{kind}{suffix}": stored(kind, tmp_path / kind) for kind in kinds}
    for path, checkpoint in checkpoints.items():
        compared = export_policy(checkpoint, path, format_)
        assert compared.largest_difference <= 1e-5
        assert compared.observations == 128
    child = ONNX_CHILD if format_ == "onnx" else CHILD
    subprocess.run(
        [sys.executable, "-I", "-c", child, given, *checkpoints], check=True, timeout=120
    )
    for path, checkpoint in checkpoints.items():
        if format_ == "onnx":
            actions = [torch.from_numpy(action) for action in np.load(f"{path}.npz").values()]
        else:
            actions = torch.load(f"{path}.taken", weights_only=True)
        actor, policy = load_actor(checkpoint), load_policy(checkpoint)
        for action, size in zip(actions, (1, 2, 7), strict=True):
            torch.testing.assert_close(action, policy(observation[:size]), rtol=1e-5, atol=1e-5)
            greedy = actor.greedy(observation[None, :size])[0]
            # the environment adds it
            start = torch.tensor(checkpoint.metadata["action_space"].get("start", 0))
            torch.testing.assert_close(action, greedy + start, rtol=1e-6, atol=1e-5)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("format_", ["torch_export", "torchscript", "onnx"])
@pytest.mark.parametrize(
    ("name", "observation_space", "action_space", "more"),
    [
        ("sac", OBSERVATIONS, gymnasium.spaces.Box(-2.0, 2.0, (2,)), {}),
        ("d3qn", OBSERVATIONS, gymnasium.spaces.Discrete(4, start=2), {"ensemble_size": 3}),
        (
            "dqn",
            gymnasium.spaces.Box(0, 255, (36, 40, 3), np.uint8),
            gymnasium.spaces.Discrete(3),
            {},
        ),
        (
            "ppo",
            gymnasium.spaces.Box(0, 255, (4, 36, 36), np.uint8),
            gymnasium.spaces.MultiBinary(2),
            {},
        ),
    ],
)
def test_every_kind_of_policy_can_be_exported(
    tmp_path, name, observation_space, action_space, more, format_
):
    shared = {"hidden_sizes": [16, 8]} | more
    algorithm = algorithm_class(name)(
        CohortConfig(name, (MemberConfig("a", 1),), shared), observation_space, action_space
    )
    metadata = {
        "algorithm": name,
        "hyperparameters": shared,
        "observation_space": spaces.to_json(from_gymnasium(observation_space)),
        "action_space": spaces.to_json(from_gymnasium(action_space)),
    }
    made = Checkpoint(algorithm.member_state(0), metadata, {})
    export_policy(made, tmp_path / "policy", format_)
    loaded = READERS[format_](tmp_path / "policy")
    observation = random_observations(made, 5)
    assert observation.dtype == (
        torch.uint8 if observation_space.dtype == np.uint8 else torch.float32
    )
    greedy = algorithm.actor.greedy(observation.unsqueeze(0))[0]
    start = getattr(action_space, "start", 0) if name == "d3qn" else 0
    torch.testing.assert_close(loaded(observation), greedy + start, rtol=1e-6, atol=1e-5)


def test_an_export_tells_where_it_is_from_and_what_it_sees(tmp_path):
    robot = gymnasium.spaces.Dict(
        gear=gymnasium.spaces.Discrete(3, start=1), arms=gymnasium.spaces.Box(0, 1, (3,))
    )
    vector = gymnasium.spaces.Box(-np.inf, np.inf, (6,))
    checkpoint = with_original_space(random_policy("ppo", vector, ACTIONS[FIRST], 0), robot)
    extra = {"podracer.json": ""}
    export_policy(checkpoint, tmp_path / "policy.pt2")
    torch.export.load(tmp_path / "policy.pt2", extra_files=extra)
    export_policy(checkpoint, tmp_path / "policy.onnx", "onnx")
    model = (
        onnxruntime.InferenceSession(tmp_path / "policy.onnx").get_modelmeta().custom_metadata_map
    )
    for text in (extra["podracer.json"], model["podracer.json"]):
        metadata = json.loads(text)
        assert metadata["agent"] == "projects/default/jobs/j/agents/a0"
        assert spaces.from_json(metadata["observation_space"]) == from_gymnasium(robot)
        assert metadata["observation_parts"] == [
            {"name": "gear", "offset": 0, "size": 3, "shape": [], "kind": "one_hot", "first": [1]},
            {"name": "arms", "offset": 3, "size": 3, "shape": [3], "kind": "numbers"},
        ]


@pytest.mark.parametrize("format_", ["torch_export", "torchscript", "onnx"])
def test_seconds_since_1970_are_told_apart(tmp_path, format_):
    """By the exported file as by the policy and a served one: float32 has no number between the
    two."""
    vector = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    checkpoint = with_origin(
        random_policy("ppo", vector, gymnasium.spaces.Box(-2.0, 2.0, (2,)), 0), 1.7e9
    )
    observed = torch.rand(5, 2)
    assert export_policy(checkpoint, tmp_path / "policy", format_, observed).observations == 69
    times = np.array([[1_700_000_000.0, 0.5], [1_700_000_001.0, 0.5]])
    assert len(np.unique(times[:, 0].astype(np.float32))) == 1
    expected = Policy(checkpoint)(times)
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    served = ServedPolicy("a", "1", [checkpoint])
    for act in (READERS[format_](tmp_path / "policy"), served.act):
        np.testing.assert_allclose(act(torch.from_numpy(times)), expected, rtol=0, atol=1e-5)


def test_the_batch_of_an_onnx_file_is_open(checkpoint, tmp_path):
    export_policy(checkpoint, tmp_path / "policy.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.shape, given.name) == ("observation", ["batch", 2, 3], "action")
    assert given.shape[0] == "batch"


def test_it_is_compared_on_what_is_observed_too(checkpoint, tmp_path):
    observed = torch.full((5, *OBSERVATIONS.shape), 100.0)
    assert export_policy(checkpoint, tmp_path / "policy.pt2", observed=observed).observations == 133


class Shifted(torch.nn.Module):
    """Acts as another, but for a number that is added."""

    def __init__(self, policy: torch.nn.Module, shift: float) -> None:
        super().__init__()
        self.policy, self.shift = policy, shift

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        action: torch.Tensor = self.policy(observation)
        return (action + self.shift).to(action.dtype)


def test_a_file_that_acts_otherwise_is_refused(checkpoint, tmp_path, monkeypatch):
    """Whatever was wrong with writing it: nothing is there afterwards, and what was there stays."""
    (tmp_path / "policy.pt2").write_bytes(b"former")

    def write(policy: torch.nn.Module, example: torch.Tensor, path: Path, extra: str) -> None:
        WRITERS["torchscript"](Shifted(policy, 1.0), example, path, extra)

    monkeypatch.setitem(WRITERS, "torch_export", write)
    monkeypatch.setitem(READERS, "torch_export", READERS["torchscript"])
    with raises(PreconditionFailed, "EXPORT_DIFFERS", match="trained policy"):
        export_policy(checkpoint, tmp_path / "policy.pt2")
    assert (tmp_path / "policy.pt2").read_bytes() == b"former"


@pytest.mark.parametrize("factor", [1.0, 300.0])
@pytest.mark.parametrize(
    ("shift", "alike"),
    [(0.0, True), (0.5e-5, True), (2e-5, False), (math.nan, False), (math.inf, False)],
)
def test_alike_means_to_1e_5(factor, shift, alike):
    """Of actions of at most 1; of greater ones it is a share of them: 300 and 300.0015 are alike,
    300.006 is not."""
    observations = torch.rand(9, 2, generator=torch.Generator().manual_seed(0))
    trained = Scaled(factor)

    def shifted(rows: torch.Tensor) -> torch.Tensor:
        return trained(rows) + factor * shift

    if alike:
        assert compare(trained, shifted, observations).largest_difference == pytest.approx(
            shift, abs=1e-6
        )
    else:
        with pytest.raises(PreconditionFailed, match="1e-05 is allowed"):
            compare(trained, shifted, observations)


def test_choices_are_the_same():
    observations = torch.rand(4, 2)
    trained = Scaled(0.0, torch.int64)
    assert compare(trained, trained, observations).largest_difference == 0.0
    with raises(PreconditionFailed, "EXPORT_DIFFERS", match="observation 2 of 4"):
        compare(
            trained,
            lambda rows: trained(rows) + (torch.arange(len(rows)) == 2).long()[:, None],
            observations,
        )
    with raises(PreconditionFailed, "EXPORT_DIFFERS", match=r"gives torch.float32 \[1, 2\]"):
        compare(trained, lambda rows: trained(rows).float(), observations)


class Scaled(torch.nn.Module):
    """The observation's sign times a factor."""

    def __init__(self, factor: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.factor, self.dtype = factor, dtype

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return (observation.sign() * self.factor).to(self.dtype)


def test_says_what_onnx_needs(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with raises(PreconditionFailed, "EXPORT_FORMAT"):
        export_policy(checkpoint, tmp_path / "policy.onnx", "onnx")
    assert not (tmp_path / "policy.onnx").exists()


def test_refuses_an_unknown_format_and_an_unwritable_path(checkpoint, tmp_path):
    with pytest.raises(InvalidInput, match="format 'tflite'"):
        export_policy(checkpoint, tmp_path / "policy", "tflite")  # type: ignore[arg-type]
    with raises(InvalidInput, "UNWRITABLE_PATH", match="write"):
        export_policy(checkpoint, tmp_path / "absent" / "policy.pt2")
    (tmp_path / "folder").mkdir()
    with raises(InvalidInput, "UNWRITABLE_PATH", match="a directory"):
        export_policy(checkpoint, tmp_path / "folder")


@pytest.mark.parametrize(
    "missing", ["algorithm", "hyperparameters", "observation_space", "action_space"]
)
def test_says_what_a_checkpoint_lacks(checkpoint, missing):
    metadata = {name: value for name, value in checkpoint.metadata.items() if name != missing}
    with raises(InvalidInput, "NOT_A_POLICY", match=f" {missing}"):
        load_policy(replace(checkpoint, metadata=metadata))


def test_says_that_tensors_are_not_what_the_metadata_say(checkpoint):
    for groups in ({"actor": checkpoint.groups["actor"]}, {}):
        with pytest.raises(InvalidInput, match="the checkpoint's"):
            load_policy(replace(checkpoint, groups=groups))
