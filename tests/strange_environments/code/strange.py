"""Environments as people bring them: a plain task of twenty steps, with one fault each.

Its best return is 20: the sign of the first number says which action is rewarded.
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 20
NUMBERS: dict[str, Any] = {
    "nan": np.nan,
    "infinite": -np.inf,
    "none": None,
    "text": "1.0",
    "overflow": 1e40,
    "shape": np.zeros(3, np.float32),
}


class Plain(gymnasium.Env[Any, Any]):
    """The task without a fault."""

    observation_space: gymnasium.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)
    action_space: gymnasium.Space[Any] = spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        self.draw()
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        reward = float((self.x[0] > 0) == bool(np.all(action)))
        self.draw()
        return self.shown(), reward, False, self.taken >= STEPS, {}

    def draw(self) -> None:
        self.x = self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def shown(self) -> Any:
        return self.x.copy()


class Faulty(Plain):
    """`part` ("observation", "reward", "flag", "code") is `fault` at `when`.

    when   "always": from the first step (of an observation: the first reset) on "step": in one step
           of a hundred, from the sixth of an episode on "reset": in one reset of five "evaluation":
           as "step", in worlds that were made after the first `trained` of this process "same":
           always at the seventh step of an episode whose seed is even
    """

    made: ClassVar[int] = 0

    def __init__(self, part: str, fault: str, when: str, trained: int = 0) -> None:
        self.part, self.fault, self.when = part, fault, when
        self.is_evaluation = Faulty.made >= trained
        Faulty.made += 1
        self.resets, self.luck = 0, np.random.default_rng(Faulty.made)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        self.is_even = seed is not None and seed % 2 == 0
        self.resets += 1
        if self.when == "reset" and self.resets % 5 == 0:
            return self._broken(observation, 0.0, False)[0], info
        if self.when == "always" and self.part == "observation":
            return self._broken(observation, 0.0, False)[0], info
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._is_due():
            observation, reward, terminated = self._broken(observation, reward, terminated)
        return observation, reward, terminated, truncated, info

    def _is_due(self) -> bool:
        if self.when == "same":
            return self.is_even and self.taken == 7
        rarely = self.taken > 5 and bool(self.luck.random() < 1 / 100)
        return self.when == "always" or (
            rarely and (self.when == "step" or (self.when == "evaluation" and self.is_evaluation))
        )

    def _broken(self, observation: Any, reward: float, terminated: Any) -> tuple[Any, Any, Any]:
        if self.fault == "raise":
            raise ConnectionResetError("the simulator has gone")
        if self.fault == "exit":
            os._exit(7)
        value = NUMBERS[self.fault]
        match self.part:
            case "observation":
                wrong = (
                    value
                    if self.fault in ("none", "text", "shape")
                    else np.full(2, value, np.float64)
                )
                return wrong, reward, terminated
            case "reward":
                return observation, value, terminated
            case _:
                return observation, reward, value


class Forms(Plain):
    """The result of `step` or `reset` in another form, always."""

    def __init__(self, form: str) -> None:
        self.form = form

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation if self.form == "reset_plain" else (observation, info)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        match self.form:
            case "four":
                return observation, reward, terminated or truncated, info
            case "reward_array":
                return observation, np.array([reward]), terminated, truncated, info
            case "reward_tensor":
                import torch

                return observation, torch.tensor(reward), terminated, truncated, info
            case "flag_int":
                return observation, reward, int(terminated), int(truncated), info
            case "flag_array":
                return observation, reward, np.array([terminated]), np.array([truncated]), info
            case "flag_none":
                return observation, reward, terminated, None, info
            case "flag_text":
                return observation, reward, "no", truncated, info
            case "tensor":
                import torch

                return torch.from_numpy(observation), reward, terminated, truncated, info
            case "list":
                return observation.tolist(), reward, terminated, truncated, info
            case "row":
                return observation[None], reward, terminated, truncated, info
            case "a_little_outside":
                return observation * 1.1, reward, terminated, truncated, info
            case "far_outside":
                return observation * 1e9, reward, terminated, truncated, info
        return observation, reward, terminated, truncated, info


class ResetWithoutSeed(Plain):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoSpaces(Plain):
    observation_space = None  # type: ignore[assignment]


class Endless(Plain):
    """It never ends an episode."""

    def step(self, action: Any) -> Any:
        observation, reward, *_, info = super().step(action)
        return observation, reward, False, False, info


class IgnoresSeed(Plain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None, options=options)


class Waits(Plain):
    """A simulator that makes its caller wait: `step_s` a step, `start_s` for its start."""

    def __init__(self, step_s: float = 0.0, start_s: float = 0.0) -> None:
        time.sleep(start_s)
        self.step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self.step_s)
        return super().step(action)


_simulators: list[Any] = []
_world = {"x": 0.0}


class OnlyOne(Plain):
    """A simulator that a process can have only one of."""

    def __init__(self) -> None:
        if _simulators:
            raise RuntimeError("a simulation is already running in this process; close it first")
        _simulators.append(self)

    def close(self) -> None:
        _simulators.clear()


class Shared(Plain):
    """All worlds of a process share their state, without a word."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def draw(self) -> None:
        self.x = np.array([_world["x"]], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        gymnasium.Env.reset(self, seed=seed)
        _world["x"], self.taken = float(self.np_random.uniform(-1, 1)), 0
        self.draw()
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        _world["x"] += 0.2 if action else -0.2
        self.taken += 1
        self.draw()
        return self.shown(), -abs(_world["x"]), False, self.taken >= STEPS, {}


class HasPort(Plain):
    """Each world needs a number of its own on this machine."""

    taken_ports: ClassVar[set[int]] = set()

    def __init__(self, environment_index: int) -> None:
        if environment_index in HasPort.taken_ports:
            raise OSError(f"port {5000 + environment_index} is in use")
        self.index = environment_index
        HasPort.taken_ports.add(environment_index)

    def close(self) -> None:
        HasPort.taken_ports.discard(self.index)


class Steers(Plain):
    """A continuous action within `bound`; the reward falls with the square of its distance from
    0.5."""

    def __init__(self, bound: float) -> None:
        self.action_space = spaces.Box(
            -bound, bound, (1,), np.float64 if bound > 3e38 else np.float32
        )

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action > 0)
        return observation, -min(float((action[0] - 0.5) ** 2), 100.0), terminated, truncated, info


class Clock(Plain):
    """The observation is a time in seconds since 1970; the action has to tell in which half of 100
    seconds it is."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)

    def draw(self) -> None:
        self.x = np.array([1_760_000_000 + int(self.np_random.integers(100))], np.float64)

    def step(self, action: Any) -> Any:
        right = float((self.x[0] >= 1_760_000_050) == bool(action))
        observation, _, terminated, truncated, info = super().step(action)
        return observation, right, terminated, truncated, info


OBSERVATIONS: dict[str, gymnasium.Space[Any]] = {
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "empty_dict": spaces.Dict(),
    "text": spaces.Text(20),
    "dict_with_text": spaces.Dict(
        speed=spaces.Box(-1, 1, (2,), np.float32), mission=spaces.Text(20)
    ),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,), np.float32), None),
    "one_of": spaces.OneOf((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32))),
    "camera_and_speed": spaces.Dict(
        camera=spaces.Box(0, 255, (40, 40, 3), np.uint8), speed=spaces.Box(0, 9, (), np.float32)
    ),
    "million": spaces.Box(-1, 1, (1_000_000,), np.float32),
    "million_places": spaces.Discrete(1_000_000),
}
ACTIONS: dict[str, gymnasium.Space[Any]] = {
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (1,), np.float32))),
    "dict": spaces.Dict(gas=spaces.Box(-1, 1, (1,), np.float32), gear=spaces.Discrete(3)),
    "integers": spaces.Box(-5, 5, (2,), np.int64),
    "table": spaces.MultiDiscrete([[2, 3], [2, 3]]),
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "start": spaces.Discrete(5, start=-2),
    "text": spaces.Text(4),
}


class Odd(Plain):
    """Other spaces; it insists on actions of its own."""

    def __init__(self, observation: str = "", action: str = "") -> None:
        shown = OBSERVATIONS.get(observation, Plain.observation_space)
        self.observation_space = copy.deepcopy(shown)  # with random numbers of its own
        self.action_space = ACTIONS.get(action, Plain.action_space)

    def draw(self) -> None:
        super().draw()
        if self.taken == 0:
            self.observation_space.seed(int(self.np_random.integers(1000)))

    def shown(self) -> Any:
        return self.observation_space.sample()

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return super().step(True)
