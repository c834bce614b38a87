"""`podracer evaluate` and `podracer export` over a real evaluator process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.registry import algorithm_class
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.spaces import to_json
from podracer_core.checkpoint import POLICY_GROUPS, load_actor, open_checkpoint_folder, save_checkpoint
from podracer_core.environments.registry import make_vec_environment
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.evaluate import Evaluator
from podracer_core.evaluate.messages import result_to_json
from podracer_core.storage.object_store import open_store
from support.stock_market import market_rows, write_csv

SEEDS = list(range(100, 108))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy for Pendulum-v1, judged on eight episodes."""
    return stored_policy(EnvironmentSpec(id="Pendulum-v1"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def trader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy for a small market."""
    folder = tmp_path_factory.mktemp("market")
    table = write_csv(folder / "prices.csv", market_rows(3, 120, seed=4))
    kwargs = {"table": str(table), "indicators": ["macd", "rsi"], "reward_scale": 100.0}
    return stored_policy(EnvironmentSpec(id="StockTrading-v0", kwargs=kwargs), folder)


def stored_policy(spec: EnvironmentSpec, folder: Path) -> Path:
    """The folder of a random policy's checkpoint in a store at `folder`."""
    environment = make_vec_environment(spec, 1, "cpu")
    cohort = CohortConfig("ppo", (MemberConfig("a0001", 7),), {"hidden_sizes": (8, 8)})
    make = algorithm_class("ppo")
    algorithm = make(cohort, environment.observation_space, environment.action_space)
    evaluator = Evaluator(lambda count: make_vec_environment(spec, count, "cpu", evaluation=True))
    (result,) = evaluator.evaluate(algorithm.actor, SEEDS)
    metadata = {
        "agent": "projects/default/jobs/j/agents/a0001",
        "algorithm": "ppo",
        "hyperparameters": {"hidden_sizes": [8, 8]},
        "environment": spec.to_metadata(),
        "observation_space": to_json(from_gymnasium(environment.observation_space)),
        "action_space": to_json(from_gymnasium(environment.action_space)),
        "env_steps": 4096,
        "evaluation": result_to_json(result),
    }
    prefix = "projects/default/jobs/u/agents/a0001/checkpoints/4096-1/"
    save_checkpoint(open_store(folder.as_uri()), prefix, algorithm.member_state(0), metadata)
    return folder / prefix


def podracer(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")}
    command = [sys.executable, "-m", "podracer_client", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_stored_returns_come_again(checkpoint: Path, tmp_path: Path) -> None:
    result = podracer("evaluate", checkpoint, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["seeds"] == SEEDS
    assert values["largest_difference"] <= 1e-4
    assert values["returns"] == pytest.approx(values["stored_returns"], abs=1e-4)
    assert (values["agent"], values["environment"]) == ("projects/default/jobs/j/agents/a0001", "Pendulum-v1")


def test_fresh_episodes_are_other_ones(checkpoint: Path, tmp_path: Path) -> None:
    result = podracer("evaluate", checkpoint / "manifest.json", "--episodes", 9, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["episodes"] == len({*values["seeds"]}) == 9
    assert not {*values["seeds"]} & {*SEEDS}
    assert values["largest_difference"] is None


def test_for_people(checkpoint: Path, tmp_path: Path) -> None:
    result = podracer("evaluate", checkpoint, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "policy      a0001 (ppo), Pendulum-v1, 4,096 environment steps" in result.stdout
    assert "difference  0 at most" in result.stdout
    assert result.stdout.count("  seed ") == 8
    assert result.stderr == ""


def test_another_split_of_the_market(trader: Path, tmp_path: Path) -> None:
    again = podracer("evaluate", trader, "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["largest_difference"] == 0.0
    result = podracer("evaluate", trader, "--set", "evaluation_split=test", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["set"] == {"evaluation_split": "test"}
    assert values["largest_difference"] is None
    spec = EnvironmentSpec.from_metadata(json.loads((trader / "manifest.json").read_text())["metadata"]["environment"])
    spec = replace(spec, kwargs={**spec.kwargs, "evaluation_split": "test"})
    evaluator = Evaluator(lambda count: make_vec_environment(spec, count, evaluation=True))
    (expected,) = evaluator.evaluate(load_actor(open_checkpoint_folder(trader, POLICY_GROUPS)), [0])
    assert values["returns"] == [pytest.approx(expected.mean)] * 8 != values["stored_returns"]


def test_several_changes_for_people(trader: Path, tmp_path: Path) -> None:
    changes = ("--set", "evaluation_split=test", "--set", "buy_cost=0")
    result = podracer("evaluate", trader, *changes, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert 'changed     evaluation_split="test", buy_cost=0: this is not the stored evaluation again' in result.stdout
    assert "stored " in result.stdout
    assert "difference" not in result.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("evaluation_splits=test", "environment.kwargs.evaluation_splits: unknown key; did you mean evaluation_split"),
        ("evaluation=true", "is told by Podracer whether it is for training or for evaluation"),
        (
            "indicators=[rsi]",
            "the policy was made for observations in Box(-inf, inf, (13,), float32), but StockTrading",
        ),
        ("evaluation_split", "--set evaluation_split: expected NAME=VALUE"),
        ("cool_down=[", "podracer: --set cool_down:"),
    ],
)
def test_a_change_that_cannot_be(trader: Path, tmp_path: Path, setting: str, message: str) -> None:
    result = podracer("evaluate", trader, "--set", setting, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_an_exported_policy_acts_with_torch_alone(checkpoint: Path, tmp_path: Path) -> None:
    result = podracer("export", checkpoint, "--output", "policy.pt2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "wrote policy.pt2" in result.stdout
    assert "torch.export.load('policy.pt2').module()(observation)" in result.stdout
    policy = torch.export.load(tmp_path / "policy.pt2").module()
    assert policy(torch.zeros(5, 3)).shape == (5, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]


def test_torchscript(checkpoint: Path, tmp_path: Path) -> None:
    result = podracer("export", checkpoint, "-o", "policy.pt", "--format", "torchscript", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["size_bytes"] == (tmp_path / "policy.pt").stat().st_size
    assert torch.jit.load(tmp_path / "policy.pt")(torch.zeros(2, 3)).shape == (2, 1)


def test_a_damaged_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in checkpoint.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / "actor.safetensors").write_bytes(b"junk")
    result = podracer("export", damaged, cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    assert "actor.safetensors" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "policy.pt2").exists()
    (damaged / "manifest.json").write_bytes(bytes(range(256)))
    result = podracer("evaluate", damaged, cwd=tmp_path)
    assert result.returncode in (1, 2)
    assert "manifest" in result.stderr
    assert "Traceback" not in result.stderr
