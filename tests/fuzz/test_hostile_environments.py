"""Environments that do random wrong things (code/hostile.py): every call to them ends with a valid
step, or one error that names them, and nothing of theirs is left.

PODRACER_FUZZ says how many, PODRACER_FUZZ_SEED which; `make fuzz` has many.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import psutil
import pytest
import torch

from podracer_core.box import limits as box
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import Break, Step
from podracer_core.environments.processes import ChildOutput, PreprocessVecEnv
from podracer_core.errors import Exhausted, InvalidInput, UserCodeFailed
from support.processes import wait_until

COUNT = int(os.environ.get("PODRACER_FUZZ", "300")) // 25
SEED = int(os.environ.get("PODRACER_FUZZ_SEED", "3"))
CODE = str(Path(__file__).with_name("code"))
MOST_GROWTH_BYTES = 256 << 20


def spec(**kwargs: object) -> EnvironmentSpec:
    return EnvironmentSpec(entry_point="hostile:Hostile", code_path=CODE, kwargs=kwargs)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A word in the environment of all processes of a program, none of which outlives it, nor a
    descriptor."""
    before = psutil.Process().num_fds(), psutil.Process().memory_info().rss
    with tempfile.NamedTemporaryFile(prefix="hostile-") as file:
        word = Path(file.name).name
        monkeypatch.setenv("HOSTILE_PROGRAM", word)
        yield word
    wait_until(lambda: not left_over(word), 60, "the end of all processes")
    gc.collect()  # the exceptions of a failed step hold on to its frame
    assert psutil.Process().num_fds() <= before[0]
    assert psutil.Process().memory_info().rss - before[1] < MOST_GROWTH_BYTES


def left_over(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("HOSTILE_PROGRAM") == word:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("number", range(SEED * 1_000_000, SEED * 1_000_000 + COUNT))
def test_whatever_an_environment_does_every_call_ends_in_order(number, mark, monkeypatch):
    chance = random.Random(number)
    monkeypatch.setattr(ChildOutput, "is_kept", not box.missing() and chance.random() < 0.3)
    tampers = chance.random() < 0.4
    try:
        play(
            chance,
            spec(number=number, rate=chance.choice((0.02, 0.1, 0.3)), tampers=tampers),
            tampers,
        )
    except (UserCodeFailed, InvalidInput, Exhausted) as error:
        assert "hostile:Hostile" in error.message
        assert len(error.message) < 3_000
        assert len(getattr(error, "user_traceback", "")) < 30_000


def play(chance: random.Random, environment: EnvironmentSpec, tampers: bool) -> None:
    """A few episodes."""
    count = chance.choice((1, 3))
    batch = PreprocessVecEnv(
        environment, count, processes=chance.choice((1, 2)), step_timeout_s=0.5, start_timeout_s=4.0
    )
    try:
        shown, (shape, dtype) = batch.observation_space, batch._action_form
        for _ in range(chance.choice((1, 2, 3))):
            check_numbers(batch.reset(torch.arange(count)), tampers, count, shown)
            for _ in range(chance.choice((1, 5, 20))):
                check(
                    batch.step(torch.zeros(shape, dtype=dtype)),
                    tampers,
                    count,
                    shown,
                    batch.take_breaks(),
                )
    finally:
        batch.close()


def check(
    step: Step, tampers: bool, count: int, shown: gymnasium.spaces.Box, breaks: list[Break]
) -> None:
    check_numbers(step.observation, tampers, count, shown)
    check_numbers(step.final_observation, tampers, count, shown)
    check_numbers(step.reward, tampers, count)
    assert (step.terminated.dtype, step.truncated.dtype, step.valid.dtype) == (torch.bool,) * 3
    assert all(
        0 <= each.row < count and len(each.text) < 500 and len(each.traceback) < 30_000
        for each in breaks
    )
    if not tampers:
        broken = ~step.valid
        assert step.truncated[broken].all()
        assert not step.reward[broken].any()
        assert set(torch.nonzero(broken).flatten().tolist()) <= {each.row for each in breaks}


def check_numbers(
    found: torch.Tensor, tampers: bool, count: int, shown: gymnasium.spaces.Box | None = None
) -> None:
    assert found.shape == (count, *(shown.shape if shown else ()))
    assert found.dtype == (torch.uint8 if shown and shown.dtype == "uint8" else torch.float32)
    assert tampers or found.isfinite().all()
