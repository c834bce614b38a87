"""What a world shows for given actions, as numbers to compare; torch is not imported."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.environments.spaces import check_mask, info_mask, mask_method, sample_allowed
from podracer_core.errors import InvalidInput

_STEPS, _EPISODES, _LONGEST_S = 100, 2, 5.0
_NUMBERS = 1024  # of an observation; the means of as many parts of a larger one


class _World:
    """An environment with its own actions."""

    def __init__(self, environment: gymnasium.Env[Any, Any], limit: int, seed: int) -> None:
        self._environment, self._limit, self._seed = environment, limit, seed
        # A copy: a class may have one space for all worlds, and a space draws from its own state.
        self._actions = copy.deepcopy(environment.action_space)
        self._actions.seed(seed)
        self._mask_method = mask_method(environment)
        self._taken, self.episodes = 0, 0
        self._info: Any = {}

    def reset(self) -> Any:
        observation, self._info = self._environment.reset(seed=self._seed + self.episodes)
        self._taken = 0
        return observation

    def step(self) -> tuple[Any, float, bool]:
        """Act, and begin the next episode at the end of one."""
        mask = self._mask_method() if self._mask_method else info_mask(self._info)
        allowed = None if mask is None else check_mask(self._actions, mask, "the mask")
        observation, reward, terminated, truncated, self._info = self._environment.step(
            sample_allowed(self._actions, allowed)
        )
        self._taken += 1
        if ended := bool(terminated or truncated) or self._taken >= self._limit:
            self.episodes += 1
        return observation, float(np.asarray(reward).item()), ended


def trace(environments: Sequence[gymnasium.Env[Any, Any]], limits: Sequence[int]) -> NDArray[np.float64]:
    """[rows, n]: what the first environment shows in some steps, while the others are stepped between."""
    shown, *others = [
        _World(environment, limit, seed=1000 * index)
        for index, (environment, limit) in enumerate(zip(environments, limits, strict=True))
    ]
    space = environments[0].observation_space
    rows = [_row(space, shown.reset(), 0.0, False)]
    for other in others:
        other.reset()
    end = time.monotonic() + _LONGEST_S
    for _ in range(_STEPS):
        observation, reward, ended = shown.step()
        rows.append(_row(space, observation, reward, ended))
        if shown.episodes == _EPISODES or time.monotonic() > end:
            break
        if ended:
            rows.append(_row(space, shown.reset(), 0.0, False))
        for other in others:
            if other.step()[-1]:
                other.reset()
    return np.stack(rows)


def _row(space: gymnasium.Space[Any], observation: Any, reward: float, ended: bool) -> Any:
    try:
        flat = np.asarray(gymnasium.spaces.flatten(space, observation), np.float64).ravel()
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InvalidInput(f"the observation is not in {space}") from error
    if flat.size > _NUMBERS:
        flat = np.add.reduceat(flat, np.linspace(0, flat.size, _NUMBERS, endpoint=False, dtype=np.int64))
    return np.array([*flat, reward, ended])
