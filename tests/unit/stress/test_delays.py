"""The delays of `make test-stress`: every function of the table is there, and its calls are
delayed."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import time
from types import ModuleType

import pytest

from support.processes import ROOT

FOLDER = ROOT / "tests" / "stress"


@pytest.fixture(scope="module")
def stress() -> ModuleType:
    """The module as it is without a seed: it installs nothing."""
    spec = importlib.util.spec_from_file_location("stress_delays", FOLDER / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long anything slept; nothing does."""
    seconds: list[float] = []

    async def sleep(delay_s: float) -> None:
        seconds.append(delay_s)

    monkeypatch.setattr(time, "sleep", seconds.append)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return seconds


def test_every_function_of_the_table_is_there_and_can_be_delayed(stress):
    for name, longest_s in stress.LONGEST_S.items():
        module_name, _, path = name.partition(":")
        owner, attribute = stress.owner_of(importlib.import_module(module_name), path)
        function = inspect.getattr_static(owner, attribute)
        assert stress.delayed(function, longest_s, stress.Delays("1")).__wrapped__ is function


async def test_calls_are_delayed_within_the_limit_and_return_what_they_return(stress, slept):
    def plain(number: int) -> int:
        return 2 * number

    async def coroutine(number: int) -> int:
        return 2 * number

    for function in (plain, coroutine):
        slept.clear()
        later = stress.delayed(function, 0.3, stress.Delays("1"))
        for number in range(2000):
            answer = later(number)
            assert (await answer if inspect.isawaitable(answer) else answer) == 2 * number
        assert 0.1 < len(slept) / 2000 < 0.3
        assert stress.SHORT_S < max(slept) <= 0.3
        assert sum(delay_s <= stress.SHORT_S for delay_s in slept) > len(slept) / 2


def test_a_generator_is_refused(stress):
    def generator():
        yield 1

    with pytest.raises(TypeError, match="delayed"):
        stress.delayed(generator, 0.3, stress.Delays("1"))


def test_equal_seeds_give_equal_delays_and_others_others(stress):
    def drawn(seed: str) -> list[tuple[float, float]]:
        delays = stress.Delays(seed)
        return [delays.draw(0.3) for _ in range(100)]

    assert drawn("1") == drawn("1") != drawn("2")


@pytest.mark.parametrize(("seed", "is_delayed"), [("1", True), ("", False)])
def test_a_process_has_delays_where_a_seed_is_set(seed, is_delayed):
    program = (
        "from podracer_platform.storage import Spool; print(hasattr(Spool.put, '__wrapped__'))"
    )
    variables = os.environ | {"PYTHONPATH": str(FOLDER), "STRESS_SEED": seed}
    told = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [str(is_delayed)]
