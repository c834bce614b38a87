"""What a world shows for given actions, as numbers to compare; torch is not imported."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.environments.processes.row_codec import number_of, numbers_of
from podracer_core.environments.spaces import check_mask, info_mask, mask_method, sample_allowed

_STEPS, _EPISODES, _LONGEST_S = 100, 2, 5.0
_NUMBERS = 1024  # of an observation; the sums of as many parts of a larger one


def trace(
    environments: Sequence[gymnasium.Env[Any, Any]], limits: Sequence[int], space: gymnasium.Space[Any]
) -> NDArray[np.float64]:
    """[rows, n]: what the first environment shows in some steps, while the others are stepped between; `space` is of
    its observations."""
    worlds = zip(environments, limits, strict=True)
    shown, *others = [_played(*world, seed=1000 * row) for row, world in enumerate(worlds)]
    end = time.monotonic() + _LONGEST_S
    rows: list[NDArray[np.float64]] = []
    for observation, reward, episode in itertools.islice(shown, _STEPS):
        if episode == _EPISODES or (rows and time.monotonic() > end):
            break
        flat = numbers_of(space, observation).astype(np.float64)
        if flat.size > _NUMBERS:
            flat = np.add.reduceat(flat, np.linspace(0, flat.size, _NUMBERS, endpoint=False, dtype=np.int64))
        rows.append(np.array([*flat, reward, episode]))
        for other in others:
            next(other)
    return np.stack(rows)


def _played(environment: gymnasium.Env[Any, Any], limit: int, seed: int) -> Iterator[tuple[Any, float, int]]:
    """Observation, reward and number of the episode at each reset and step, without an end."""
    # A copy: a class may have one space for all worlds, and a space draws from its own state.
    space, masks = copy.deepcopy(environment.action_space), mask_method(environment)
    space.seed(seed)
    for episode in itertools.count():
        observation, info = environment.reset(seed=seed + episode)
        yield observation, 0.0, episode
        for _ in range(limit):
            mask = masks() if masks else info_mask(info)
            action = sample_allowed(space, None if mask is None else check_mask(space, mask, "the mask"))
            observation, reward, terminated, truncated, info = environment.step(action)
            yield observation, number_of(reward), episode
            if terminated or truncated:
                break
