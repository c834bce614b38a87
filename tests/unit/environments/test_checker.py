"""The trial of an environment: what it accepts with a warning, what it refuses, and what it
measures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from podracer_core.catalogue import EnvironmentSpec, unreachable
from podracer_core.environments import Inspection, inspect_environment
from podracer_core.environments.processes import checker
from podracer_core.errors import InvalidInput
from podracer_platform.messages import environment_from_message, environment_to_message

Result = tuple[Any, Any, Any, Any, dict[str, Any]]


class Plain(gymnasium.Env[Any, Any]):
    """Random numbers, for at most 20 steps. `change` makes another result of the sound one of a
    step."""

    def __init__(
        self, change: Callable[[Result], Any] | None = None, **spaces_: spaces.Space[Any]
    ) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        vars(self).update(spaces_)
        self._change = change

    def _seen(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        result = self._seen(), 1.0, False, self.steps >= 20, {}
        return self._change(result) if self._change else result


def inspect(environment: Callable[..., Any]) -> Inspection:
    return inspect_environment(EnvironmentSpec(entry_point="shop:Shop"), make=environment)


def changed(**values: Callable[[Any], Any]) -> Callable[[Result], Any]:
    names = ("observation", "reward", "terminated", "truncated", "info")
    return lambda result: tuple(
        values.get(name, lambda x: x)(x) for name, x in zip(names, result, strict=True)
    )


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (
            changed(reward=lambda r: np.array([r])),
            "the reward of step is ndarray array([1.]); a float is right",
        ),
        (changed(reward=torch.tensor), "the reward of step is Tensor tensor(1.)"),
        (changed(terminated=int), "terminated is int 0; a bool is right"),
        (changed(truncated=lambda t: np.array([t])), "truncated is ndarray array([False])"),
        (
            changed(observation=lambda o: o * 1.2),
            "outside the bounds [-1, 1] of its space; it is used as it is",
        ),
        (changed(observation=lambda o: torch.tensor(o, requires_grad=True)), ""),
        (changed(observation=list), ""),
        (changed(info=lambda _: None), ""),
    ],
)
def test_what_is_plain_is_accepted(change, warning):
    warnings = inspect(lambda: Plain(change)).warnings
    assert len(warnings) == (1 if warning else 0)
    assert all(warning in text and "(Plain.step, test_checker.py:" in text for text in warnings)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda result: result[:4], "not a tuple of 4; the former gym returned four"),
        (
            changed(reward=lambda _: None),
            "finite number, not NoneType None .*in three episodes from their first",
        ),
        (changed(reward=lambda _: np.nan), "finite number, not float nan"),
        (changed(reward=lambda _: 1e40), r"finite number, not float 1e\+40"),
        (changed(reward=str), "must be a finite number, not str '1.0'"),
        (changed(reward=lambda _: np.ones(2)), "must be a finite number, not ndarray"),
        (changed(terminated=lambda _: None), "terminated must be a bool, not NoneType None"),
        (changed(observation=lambda o: o[None]), r"has the shape \[1, 2\]; its space has \[2\]"),
        (changed(observation=lambda o: o + 3), r"outside the bounds \[-1, 1\]"),
        (changed(observation=lambda o: o * np.nan), "NaN or infinity in it"),
    ],
)
def test_what_cannot_be_right_is_refused(change, refusal):
    with pytest.raises(InvalidInput, match=rf"{refusal}.*") as caught:
        inspect(lambda: Plain(change))
    assert "(Plain.step, test_checker.py:" in caught.value.message


def test_numbers_that_break_now_and_then_are_told():
    def breaks(result: Result) -> Result:
        return changed(reward=lambda r: np.nan if result[0][0] > 0.7 else r)(result)

    (warning,) = inspect(lambda: Plain(breaks)).warnings
    assert "such an episode is not counted" in warning


def test_an_exception_that_does_not_repeat_is_told():
    left = iter(range(30, -1000, -1))

    def breaks(result: Result) -> Result:
        if next(left) == 0:
            raise ConnectionResetError("the simulator is gone")
        return result

    (warning,) = inspect(lambda: Plain(breaks)).warnings
    assert warning.startswith("step raised ConnectionResetError: the simulator is gone (Plain.step")


class Seedless(Plain):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoSpaces(gymnasium.Env[Any, Any]):
    pass


FormerGym = type("FormerGym", (), {"__module__": "gym.core"})


@pytest.mark.parametrize(
    ("environment", "refusal"),
    [
        (
            Seedless,
            r"reset takes no seed \(Seedless.reset, test_checker.py:\d+\); right is def reset",
        ),
        (
            NoSpaces,
            "NoSpaces.observation_space is None; set it to a gymnasium.spaces.Space in __init__",
        ),
        (
            FormerGym,
            "the environment FormerGym is of the former gym: derive it from gymnasium.Env, or wrap "
            "it with shimmy",
        ),
        (
            lambda: gymnasium.make_vec("CartPole-v1", 2),
            "CartPoleVectorEnv is several in one: pass the id, or",
        ),
        (
            lambda: None,
            "shop:Shop returned NoneType, not a gymnasium.Env: it has to return the environment",
        ),
        (lambda: Plain(observation_space=spaces.Dict(a=spaces.Text(3))), "nothing but text"),
    ],
)
def test_what_is_no_environment_is_refused(environment, refusal):
    with pytest.raises(InvalidInput, match=refusal):
        inspect(environment)


class Unseeded(Plain):
    def _seen(self) -> Any:
        return np.array([random.random(), 0.0], np.float32)


class Clock(Plain):
    start = 1.7e9

    def _seen(self) -> Any:
        return np.array([self.start + 0.05 * self.steps, 0.5])


class Timetable(Clock):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.start = 1.7e9 + 1e8 * (seed or 0)
        return super().reset(seed=seed)


class Counter(Plain):
    def _seen(self) -> Any:
        return np.array([self.steps, 2**24 + self.steps])


class Described(Plain):
    def reset(self, **arguments: Any) -> Any:
        return {"numbers": super().reset(**arguments)[0], "mission": "go"}, {}

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return ({"numbers": observation, "mission": "go"}, *others)


def test_an_origin_for_numbers_that_float32_cannot_tell_apart():
    numbers = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    found = inspect(lambda: Clock(observation_space=numbers))
    assert (list(found.warnings), found.observation_origin) == ([], (1.7e9, 0.0))
    found = inspect(lambda: Counter(observation_space=spaces.Box(0, 2**40, (2,), np.int64)))
    assert (list(found.warnings), found.observation_origin) == ([], (0.0, 2.0**24))
    assert inspect(Plain).observation_origin == ()
    (warning,) = inspect(lambda: Timetable(observation_space=numbers)).warnings
    assert warning.startswith(
        "number 0 of the observation begins episodes far apart, and float32 cannot hold"
    )
    spec = EnvironmentSpec(entry_point="shop:Shop", observation_origin=(1.6e9,))
    given = inspect_environment(spec, make=lambda: Clock(observation_space=numbers))
    assert given.observation_origin == (1.6e9,)
    assert EnvironmentSpec.from_metadata(spec.to_metadata()) == spec
    assert environment_from_message(environment_to_message(spec)) == spec


def test_warnings():
    (seed,) = inspect(Unseeded).warnings
    assert seed.startswith("reset ignores its seed: evaluations will not repeat; ")
    (bound,) = inspect(lambda: Plain(action_space=spaces.Box(-1e6, 1e6, (1,)))).warnings
    assert bound.startswith("an action may be as large as 1e+06")
    assert not inspect(lambda: Plain(action_space=spaces.Box(-3.4e38, 3.4e38, (1,)))).warnings
    found = inspect(
        lambda: Described(
            observation_space=spaces.Dict(numbers=Plain().observation_space, mission=spaces.Text(9))
        )
    )
    assert found.warnings == ["'mission' is left out of the observations: it is text"]
    assert unreachable(EnvironmentSpec("CartPole-v1"), 600.0) == [
        "the target 600 cannot be reached: the most that an episode of CartPole-v1 gives is 500"
    ]
    assert unreachable(EnvironmentSpec("CartPole-v1", max_episode_steps=600), 600.0) == []


@pytest.mark.parametrize(("processor_s", "waits"), [(0.0, True), (0.02, False)])
def test_what_it_measures(monkeypatch, processor_s, waits):
    """A step of 20 ms that waits, or computes, on clocks that only a step advances."""
    now = [0.0, 0.0]

    def tick(result: Result) -> Result:
        now[0] += 0.02
        now[1] += processor_s
        return result

    monkeypatch.setattr(checker.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(checker.time, "process_time", lambda: now[1])
    found = inspect(lambda: Plain(tick))
    assert (found.step_s, found.waits) == (pytest.approx(0.02), waits)
