"""Without `podracer_trading` everything else works, and what needs it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOT_INSTALLED = """
import importlib.abc, importlib.metadata, sys


class NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "podracer_trading":
            raise ModuleNotFoundError(f"{name} is not installed", name=name)


sys.meta_path.insert(0, NotInstalled())
every = importlib.metadata.distributions


def distributions(**wanted):
    return (each for each in every(**wanted) if each.name != "podracer-trading")


importlib.metadata.distributions = distributions
"""
CATALOGUE = """
from podracer_core.catalogue import known_environments
from podracer_core.catalogue import evaluator_names
assert "CartPole-v1" in known_environments() and "StockTrading-v0" not in known_environments()
assert evaluator_names() == ["greedy_episodes"]
from podracer_core.catalogue import find_environment
from podracer_core.errors import InvalidInput
try:
    find_environment("StockTrading-v0")
except InvalidInput as error:
    assert error.message.endswith("'StockTrading-v0'; pip install podracer-trading"), error
else:
    raise AssertionError("there is such an environment")
import podracer
podracer.train("CartPole-v1", "ppo", steps=2_048, members=1)
print("trained")
"""
BACKTEST = """
import pytest
from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_client.local import private_evaluator
from podracer_core.errors import PreconditionFailed
with private_evaluator() as evaluator:
    with pytest.raises(PreconditionFailed, match="pip install podracer-trading") as raised:
        list(evaluator.Backtest(evaluator_service_pb2.BacktestRequest()))
    assert raised.value.reason == "EXTRA_NOT_INSTALLED"
print("refused")
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Of processes that have no such package, nor have those that they start."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOT_INSTALLED)
    paths = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "100"}


def run(variables: dict[str, str], folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_commands(variables, tmp_path):
    shown = run(variables, tmp_path, "-m", "podracer_client", "--help")
    assert "evaluate" in shown
    assert "backtest" not in shown
    assert "StockTrading" not in run(variables, tmp_path, "-m", "podracer_client", "environments")


def test_an_agent_trains(variables, tmp_path):
    assert "trained" in run(variables, tmp_path, "-c", CATALOGUE)


def test_an_evaluator_refuses_a_back_test(variables, tmp_path):
    assert "refused" in run(variables, tmp_path, "-c", BACKTEST)
