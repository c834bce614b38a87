"""What users' code prints in a service: its end is kept and told with a failure, and a bounded part
is logged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import inspect_environment
from podracer_core.environments.processes import (
    KEPT_BYTES,
    ChildOutput,
    PreprocessVecEnv,
    child_process,
)
from podracer_core.errors import UserCodeFailed

CODE = """
import os, sys
import gymnasium
import numpy as np

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, end=""):
        print("\\x1b[31mred\\x1b[0m words\\x07\\x00")
        if end == "raise":
            raise ValueError("no maze")
        if end == "die":
            os.abort()

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        sys.stderr.write("a long line\\n" * 300_000)
        print("the last line")
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""
Make = Callable[..., EnvironmentSpec]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Of an environment that prints, as in a service; no thread or descriptor of its output is
    left."""
    (tmp_path / "printing.py").write_text(CODE)
    monkeypatch.setattr(ChildOutput, "is_kept", True)
    monkeypatch.setattr(child_process, "_log", child_process._Log())
    before = psutil.Process().num_fds()
    yield lambda **kwargs: EnvironmentSpec(
        entry_point="printing:World", code_path=str(tmp_path), kwargs=kwargs
    )
    for thread in threading.enumerate():
        if thread.name == "environment-output":
            thread.join(60)
    assert psutil.Process().num_fds() <= before


@pytest.mark.parametrize(
    "start",
    [inspect_environment, lambda spec: PreprocessVecEnv(spec, 2, processes=1)],
    ids=["inspected", "trained in"],
)
def test_a_failure_tells_what_was_printed_last(spec, start, capfd):
    with pytest.raises(UserCodeFailed, match="no maze") as raised:
        start(spec(end="raise"))
    output = "The last output of the environment:\nred words\n"
    assert raised.value.user_traceback.endswith(f"ValueError: no maze\n\n{output}")
    with pytest.raises(UserCodeFailed, match="SIGABRT") as died:
        start(spec(end="die"))
    assert died.value.user_traceback == output
    assert "red" in capfd.readouterr().err, "it is in the service's log too"


def test_an_environment_that_prints_without_end_fills_no_memory_and_no_log(spec, capfd):
    environment = PreprocessVecEnv(spec(), 1, processes=1)
    environment.reset(torch.arange(1))
    environment.step(torch.zeros(1, dtype=torch.int64))
    kept = environment._processes.output.kept()  # type: ignore[union-attr]
    environment.close()
    assert len(kept) == KEPT_BYTES
    assert kept.endswith(b"a long line\nthe last line\n")
    log = capfd.readouterr().err
    assert len(log) < KEPT_BYTES, "of 3.6 MB"
    assert "this log has a part of it" in log


def test_elsewhere_all_goes_on_to_stderr(spec, capfd, monkeypatch):
    monkeypatch.setattr(ChildOutput, "is_kept", False)
    with pytest.raises(UserCodeFailed, match="no maze") as raised:
        PreprocessVecEnv(spec(end="raise"), 1)
    assert raised.value.user_traceback.endswith("ValueError: no maze\n")
    assert "\x1b[31mred\x1b[0m words" in capfd.readouterr().err
