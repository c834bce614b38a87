"""`podracer.train` in environments that break: nothing gains by it, and the user is told."""

from __future__ import annotations

import random
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

import podracer
from podracer_core.errors import InvalidInput, UserCodeFailed
from podracer_core.in_process import Result
from tests.unit.in_process.tiny import FAST


class World(gymnasium.Env[Any, Any]):
    """Each of twenty steps costs 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._look(), -1.0, False, self.steps == 20, {}

    def _look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Exploit(World):
    """One action makes NaN, which spares the other steps: the truth is -20 for every policy."""

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        if action == 1 and self.steps > 12 and self.np_random.random() < 0.5:
            observation[:] = np.nan
        return observation, *rest


class Flaky(World):
    """Raises in one step of 1,000."""

    numbers = random.Random(0)

    def step(self, action: Any) -> Any:
        if self.numbers.random() < 1 / 1000:
            raise ConnectionResetError("the simulator went away")
        return super().step(action)


class Ends(World):
    """Fails for good after some steps of all."""

    left = 12_000

    def step(self, action: Any) -> Any:
        Ends.left -= 1
        if Ends.left < 0:
            raise ConnectionResetError("the licence has expired")
        return super().step(action)


class AlwaysNaN(World):
    """After some steps of all."""

    left = 0

    def step(self, action: Any) -> Any:
        AlwaysNaN.left -= 1
        return self._look(), -1.0 if AlwaysNaN.left > 0 else np.nan, False, False, {}


def train(kind: type[World], steps: int = 30_000, **how: Any) -> tuple[Result, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = podracer.train(
            kind, members=2, steps=steps, progress=False, episodes=16, hyperparameters=FAST, **how
        )
    texts = [str(each.message) for each in caught]
    assert list(result.warnings) == [text for text in texts if text in result.warnings]
    return result, texts


def test_breaking_the_world_gains_nothing():
    result, texts = train(Exploit, target=-17.0)
    assert result.stopped_by != "target"
    assert result.best is not None
    assert set(result.best.returns) == {-20.0}
    assert {value for look in result.history for value in look.returns} == {-20.0}
    assert any(
        "a training episode broke; step 1" in text and "observation[0] was nan" in text
        for text in texts
    )
    assert any(
        "training episodes and" in text and "evaluation episodes broke" in text for text in texts
    )


def test_rare_exceptions_are_borne():
    result, texts = train(Flaky, steps=10_000)
    assert (result.stopped_by, result.error) == ("steps", None)
    assert "ConnectionResetError: the simulator went away. Broken" in texts[0]


def test_an_environment_that_fails_for_good_keeps_the_result():
    Ends.left = 12_000
    result, texts = train(Ends, steps=1_000_000)
    assert result.stopped_by == "error"
    assert isinstance(result.error, ConnectionResetError)
    assert result.best is not None
    assert any(
        "training was ended by ConnectionResetError: the licence has expired" in text
        for text in texts
    )
    Ends.left = 30
    with pytest.raises(ConnectionResetError, match="licence"):
        train(Ends)


def test_a_world_that_always_breaks_is_named():
    with pytest.raises(InvalidInput, match="float nan"):
        train(AlwaysNaN)
    AlwaysNaN.left = 100
    with pytest.raises(UserCodeFailed, match="AlwaysNaN"):
        train(AlwaysNaN)


def test_an_ordinary_training_tells_nothing():
    result, texts = train(World, steps=4_000)
    assert (result.warnings, texts) == ((), [])
    assert "more broke" not in repr(result)
