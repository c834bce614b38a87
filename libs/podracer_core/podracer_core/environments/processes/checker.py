"""Tries a user's environment before anything trains in it: the form of what it returns, its speed,
whether it repeats.

The same code runs in a child process for jobs and ids, and in this process for a notebook's class.
It does not import torch or user code."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from podracer_core.catalogue import NO_BOUND
from podracer_core.environments.processes.row_codec import (
    NotFinite,
    check_reset,
    check_step,
    number_of,
    numbers_of,
)
from podracer_core.errors import InvalidInput, PodracerError

_STEPS, _FEWEST_STEPS, _ENOUGH_S = 60, 5, 1.0
_EPISODE_STEPS, _REPEATED_STEPS = 20, 10
_BROKEN_IN_A_ROW, _FIRST_STEPS = 3, 3
_COMPARED = 4096  # numbers of an observation
_LARGE_BOUND = 1e4
_FEW_VALUES = 1024
_WAITING_S = 1e-3


class Checker:
    """One trial of at most 60 steps; a slow environment takes at least 5, and then as many as begin
    within a second."""

    def __init__(
        self, environment: gymnasium.Env[Any, Any], space: gymnasium.Space[Any],
        sample: Callable[[Any], Any], tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`space`: of the observations, without parts that are left out. `sample`: a random action,
        given the last info. `tell` gets what the user's code does, for the message if it fails."""
        self._environment, self._space, self._sample, self._tell = environment, space, sample, tell
        self._warnings: dict[str, str] = {}
        self._walls: list[float] = []
        self._processors: list[float] = []
        self._step_number = self._broken_in_a_row = 0

    def report(self) -> dict[str, Any]:
        """`warnings`; seconds of a step, `step_s`; whether it `waits` more than it computes; its
        `observation_origin`. Raises InvalidInput for what cannot be used, and the environment's own
        errors."""
        self._check_reset_signature()
        self._check_bounds()
        first = self._attempt(0, _EPISODE_STEPS)
        again = self._attempt(0, _REPEATED_STEPS) if first else []
        self._compare(first, again)
        seed = 0
        origin = _origin([numbers[:-1] for numbers in first])
        while self._goes_on:
            seed += 1
            self._check_precision(self._attempt(seed, _EPISODE_STEPS), origin)
        wall, processor = float(np.median(self._walls)), float(np.median(self._processors))
        waits = wall >= _WAITING_S and processor < wall / 2
        return {
            "warnings": list(self._warnings.values()),
            "step_s": wall,
            "waits": waits,
            "observation_origin": origin,
        }

    @property
    def _goes_on(self) -> bool:
        taken = len(self._walls)
        return taken < _STEPS and (taken < _FEWEST_STEPS or sum(self._walls) < _ENOUGH_S)

    def _attempt(self, seed: int, steps: int, earlier: Exception | None = None) -> list[Any]:
        """`_episode`, twice if its step raises: an error that comes again is raised, another one
        told."""
        failed_at = self._step_number
        try:
            seen = self._episode(seed, steps)
        except PodracerError:
            raise
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            if earlier is None and len(self._walls) > 0 and self._step_number > 0:
                return self._attempt(seed, steps, error)
            raise (earlier or error) if self._step_number <= failed_at else error from None
        if earlier is not None:
            self._warn(
                "raised", f"step raised {type(earlier).__name__}: {earlier} ({self._place('step')})"
            )
        return seen

    def _episode(self, seed: int, steps: int) -> list[Any]:
        """What each reset and step showed, as numbers; empty if these broke."""
        self._environment.action_space.seed(seed)
        self._step_number, seen, ended = 0, [], False
        try:
            self._tell("reset")
            result: Any = self._environment.reset(seed=seed)
            self._check("reset", check_reset, result)
            seen.append(self._numbers(result[0], 0.0))
            while self._goes_on and not ended and self._step_number < steps:
                action = self._sample(result[-1])
                self._tell("step")
                self._step_number += 1
                wall, processor = time.perf_counter(), time.process_time()
                result = self._environment.step(action)
                self._processors.append(time.process_time() - processor)
                self._walls.append(time.perf_counter() - wall)
                ended = self._check("step", check_step, result)
                seen.append(self._numbers(result[0], result[1]))
        except NotFinite as error:
            self._note_broken(seed, error)
            return []
        self._broken_in_a_row = 0
        return seen

    def _check(self, method: str, look: Callable[..., Any], result: Any) -> Any:
        try:
            return look(
                self._space,
                result,
                lambda kind, text: self._warn(kind, f"{text} ({self._place(method)})"),
            )
        except InvalidInput as error:
            raise type(error)(f"{error.message} ({self._place(method)})") from None

    def _note_broken(self, seed: int, error: NotFinite) -> None:
        """Numbers that break now and then end an episode; those that always break at once are a
        mistake."""
        self._broken_in_a_row = (
            self._broken_in_a_row + 1 if self._step_number <= _FIRST_STEPS else 0
        )
        if self._broken_in_a_row == _BROKEN_IN_A_ROW:
            raise InvalidInput(f"{error.message}, in three episodes from their first steps on")
        where = f"step {self._step_number}" if self._step_number else "the start"
        self._warn(
            "broken",
            f"{error.message}, in {where} of the episode of seed {seed}: such an episode is not "
            "counted",
        )

    def _numbers(self, observation: Any, reward: Any) -> Any:
        flat = numbers_of(self._space, observation)[:_COMPARED]
        return np.append(flat.astype(np.float64), number_of(reward))

    def _compare(self, first: list[Any], again: list[Any]) -> None:
        same = [np.array_equal(*pair) for pair in zip(first, again, strict=False)]
        if not all(same[:1]):
            advice = "call super().reset(seed=seed) and draw from self.np_random"
            self._warn(
                "seed",
                f"reset ignores its seed: evaluations will not repeat; {advice} "
                f"({self._place('reset')})",
            )
        elif not all(same):
            what = (
                "step draws numbers that the seed of reset does not set: evaluations will not "
                "repeat"
            )
            self._warn("seed", f"{what}; draw from self.np_random ({self._place('step')})")

    def _check_precision(self, seen: list[Any], origin: list[float]) -> None:
        """Warn where the origin of the first episode is far from another one."""
        places = np.flatnonzero(origin)
        if seen and (lost := _origin(np.array(seen)[:, places] - np.array(origin)[places])):
            what = (
                f"number {places[np.flatnonzero(lost)[0]]} of the observation begins episodes "
                "far apart"
            )
            self._warn(
                "precision",
                f"{what}, and float32 cannot hold its small differences: let it begin at 0",
            )

    def _check_reset_signature(self) -> None:
        environment: Any = self._environment
        while environment is not None:
            parameters = inspect.signature(environment.reset).parameters.values()
            if not any(
                each.name == "seed" or each.kind is inspect.Parameter.VAR_KEYWORD
                for each in parameters
            ):
                right = (
                    "def reset(self, *, seed=None, options=None), which returns (observation, info)"
                )
                raise InvalidInput(
                    f"reset takes no seed ({_place(environment, 'reset')}); right is {right}"
                )
            environment = environment.env if isinstance(environment, gymnasium.Wrapper) else None

    def _check_bounds(self) -> None:
        space = self._environment.action_space
        if isinstance(space, gymnasium.spaces.Box):
            bounds = np.abs(
                np.concatenate([space.low.ravel(), space.high.ravel()]).astype(np.float64)
            )
            large = bounds[(bounds > _LARGE_BOUND) & (bounds < NO_BOUND)]
            if large.size:
                what = (
                    f"an action may be as large as {large.max():g}, so a new policy explores "
                    "all of that"
                )
                advice = (
                    "set the bounds of useful actions, or -numpy.inf and numpy.inf where "
                    "there are none"
                )
                self._warn("bounds", f"{what}: {advice} in action_space")

    def _warn(self, kind: str, text: str) -> None:
        self._warnings.setdefault(kind, text)

    def _place(self, method: str) -> str:
        return _place(self._environment, method)


def _origin(seen: Any) -> list[float]:
    """The first value of numbers whose differences float32 cannot hold, such as Unix seconds; 0 of
    the others. Empty if there are none."""
    if not len(seen):
        return []
    numbers = np.asarray(seen)
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = np.spacing(np.abs(numbers).max(0).astype(np.float32))
        rounded = numbers.astype(np.float32)
    width = np.ptp(numbers, 0)
    lost = (numbers != rounded).any(0) & (width > 0.0) & (width < _FEW_VALUES * spacing)
    return np.where(lost, numbers[0], 0.0).tolist() if lost.any() else []


def _place(environment: Any, method: str) -> str:
    """Where the user's code of a method is: `Shop.step, shop.py:12`; the class alone where the file
    is unknown."""
    while isinstance(environment, gymnasium.Wrapper) and type(environment).__module__.startswith(
        "gymnasium."
    ):
        environment = environment.env
    name = f"{type(environment).__name__}.{method}"
    code = getattr(inspect.unwrap(getattr(environment, method)), "__code__", None)
    return name if code is None else f"{name}, {Path(code.co_filename).name}:{code.co_firstlineno}"


_OTHER_LIBRARIES = {
    "gym": "is of the former gym: derive it from gymnasium.Env, or wrap it with "
    "shimmy.GymV21CompatibilityV0(env=…)",
    "pettingzoo": "is of PettingZoo, with several agents; Podracer trains one: wrap it as a "
    "gymnasium.Env of one agent",
    "dm_env": "is of dm_env: wrap it with shimmy.DmControlCompatibilityV0(…)",
    "dm_control": "is of dm_control: wrap it with shimmy.DmControlCompatibilityV0(…)",
    "stable_baselines3": "is of Stable-Baselines3, several in one: pass what makes a single "
    "gymnasium.Env",
    "gymnasium.vector": "is several in one: pass the id, or a function that makes a single "
    "gymnasium.Env",
}


def problem_of_kind(kind: type) -> str:
    """Why instances of a class are no environments, where the library that they come from tells;
    empty elsewhere."""
    modules = [base.__module__ for base in kind.__mro__]
    for library, text in _OTHER_LIBRARIES.items():
        if any(module == library or module.startswith(f"{library}.") for module in modules):
            return f"the environment {kind.__name__} {text}"
    return ""


def require_environment(made: Any, name: str) -> gymnasium.Env[Any, Any]:
    """`made` itself. Raises InvalidInput unless it is a Gymnasium environment."""
    if isinstance(made, gymnasium.Env):
        return made
    advice = problem_of_kind(type(made)) or (
        "it has to return the environment" if made is None else
        "derive it from gymnasium.Env; an environment in torch is named by its class, a subclass "
        "of TorchEnvironment"
    )  # fmt: skip
    raise InvalidInput(f"{name} returned {type(made).__name__}, not a gymnasium.Env: {advice}")


def required_space(environment: gymnasium.Env[Any, Any], name: str) -> gymnasium.Space[Any]:
    """The observation or action space. Raises InvalidInput if there is none."""
    space = getattr(environment, name, None)
    if isinstance(space, gymnasium.Space):
        return space
    kind = type(environment.unwrapped).__name__
    found = "None" if space is None else f"a {type(space).__module__}.{type(space).__name__}"
    raise InvalidInput(f"{kind}.{name} is {found}; set it to a gymnasium.spaces.Space in __init__")
