"""Worlds that disturb each other are found out and get a process each; others are left together."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import podracer
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import IsolationProof, isolation_proof
from podracer_core.environments.processes import LocalRows, PreprocessVecEnv
from podracer_core.errors import InvalidInput
from podracer_core.in_process import find_source
from support.errors import raises
from tests.unit.environments import shared_worlds
from tests.unit.environments.shared_worlds import OnlyOne, Walk

ROOT = Path(__file__).parents[3]
FOLDER = str(Path(__file__).parent)
SMALL: dict[str, Any] = {"members": 1, "steps": 256, "episodes": 2, "progress": False}


def spec(name: str, **values: Any) -> EnvironmentSpec:
    return EnvironmentSpec(entry_point=f"shared_worlds:{name}", code_path=FOLDER, **values)


def test_only_what_a_second_world_changes_is_shared_state():
    proofs = {
        name: IsolationProof(spec(name)).start()
        for name in ("Shared", "OnlyOne", "Walk", "Unseeded")
    }
    verdicts = {name: proof.shares_state() for name, proof in proofs.items()}
    assert verdicts == {"Shared": True, "OnlyOne": True, "Walk": False, "Unseeded": False}


def test_what_is_known_or_isolated_is_not_proved():
    assert isolation_proof(spec("Walk")) is not None
    assert isolation_proof(EnvironmentSpec("some_package:Simulator-v0")) is not None
    known = [
        spec("Walk", isolation="process"),
        EnvironmentSpec("CartPole-v1"),
        EnvironmentSpec("FrozenLake-v1"),
    ]
    assert [isolation_proof(each) for each in known] == [None, None, None]


def test_each_world_has_a_process_and_keeps_it(monkeypatch):
    """As an evaluator uses them: first few, then more, then few again. Every number is there
    once."""
    monkeypatch.setenv("NUMBERED", Path("/proc/self").resolve().name)
    environment = PreprocessVecEnv(
        spec("Numbered", isolation="process"), 40, processes=2, elastic=True
    )
    try:
        started, seen = [], []
        for count in (2, 4, 3):
            assert environment.resize(count)
            seen.append(environment.reset(torch.arange(count)).flatten().int().tolist())
            step = environment.step(torch.ones(count, dtype=torch.int64))
            assert step.reward.shape == (count,)
            started.append(environment.process_ids)
        assert [len(ids) for ids in started] == [2, 4, 4]
        assert started[2] == started[1]
        assert started[1][:2] == started[0]
        assert seen[0] == seen[1][:2]
        assert seen[2] == seen[1][:3]
        assert len(set(seen[1])) == 4
        assert all(both // 1000 == both % 1000 for both in seen[1]), (
            "the process's number is its first world's"
        )
        assert not environment.resize(100)
    finally:
        environment.close()


def test_shared_state_of_a_notebook_is_isolated_and_then_told_truly():
    """A class that no other process can import, whose state all its worlds share."""
    place = {"x": 0.0}

    class Here(Walk):
        def __init__(self) -> None:
            self.place = place

    with pytest.warns(UserWarning, match="process share"):
        result = podracer.train(Here, **SMALL)
    world, returns = Here(), []
    for seed in range(3):
        observation, _ = world.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            observation, reward, _, ended, _ = world.step(result.policy(observation))
            total += reward
        returns.append(total)
    np.testing.assert_allclose(result.evaluate(3, seed=0).returns, returns, rtol=1e-5)
    assert result.checkpoint.metadata["environment"]["isolation"] == "process"


def test_a_simulator_that_exists_once_trains_when_it_is_told_to():
    result = podracer.train(OnlyOne, isolation="process", envs_per_member=2, **SMALL)
    assert result.best is not None
    assert not OnlyOne.is_open, "none was made in this process"


def test_what_cannot_be_copied_is_refused():
    lock = threading.Lock()
    with raises(InvalidInput, "NOT_COPIED"):
        podracer.train(lambda: lock and Walk(), isolation="process", **SMALL)


def test_a_second_world_that_fails_leaves_the_process_free(monkeypatch):
    monkeypatch.setattr(shared_worlds.OnlyOne, "is_open", False)
    rows = LocalRows(OnlyOne, spec("OnlyOne"), 2)
    with pytest.raises(RuntimeError, match="already running"):
        rows.start()
    rows.close()
    assert not OnlyOne.is_open


def test_a_registered_environment_is_copied_too():
    gymnasium.register("Walk-v7", Walk, max_episode_steps=5)
    try:
        environment = find_source("Walk-v7", isolation="process").open(1)
    finally:
        del gymnasium.registry["Walk-v7"]
    assert environment.max_episode_steps == 5
    environment.close()


def test_pickle_goes_only_to_our_own_children():
    """docs/security.md: one place unpickles, and only the caller's own process packs."""
    uses: dict[str, set[str]] = {"pickle": set(), "packed": set(), "unpacked": set()}
    modules = r"^\s*(?:import|from) (?:cloudpickle|c?pickle|dill|joblib|shelve|marshal)\b"
    words = {
        "pickle": re.compile(rf"{modules}|(?<!safetensors\.)torch\.load\(|allow_pickle=True", re.M),
        "packed": re.compile(r"(?<!def )\bpacked\("),
        "unpacked": re.compile(r"(?<!def )\bunpacked\("),
    }
    for path in [
        *ROOT.glob("libs/*/podracer_*/**/*.py"),
        *ROOT.glob("services/*/podracer_*/**/*.py"),
    ]:
        for name, word in words.items():
            if word.search(path.read_text()):
                uses[name].add(path.stem)
    assert uses == {
        "pickle": {"exchange"},
        "packed": {"order"},
        "unpacked": {"preprocess_child"},
    }
