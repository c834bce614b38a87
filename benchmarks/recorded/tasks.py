"""The tasks of benchmarks/recorded_curves.py, and the list of configurations that is the same for
everyone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.evolution.portfolio import configuration
from podracer_core.evolution.search_space import shape_of
from podracer_core.sections.search import AlgorithmShare, Search
from podracer_leaderboard.competition import read_competition
from podracer_platform.messages.sections import search_to_message

LOOKS = 27
"""Looks at a curve, evenly over its seconds, beside one at the untrained policy. The rungs of
halving with η = 3 are at 3, 9 and 27."""

EPISODES, LAST_EPISODES, LAST_LOOKS = 24, 32, 3
"""Greedy episodes of a look, and of each of the last three, whose mean is the curve's end."""

CONFIGURATIONS = 48
SEED = 0


@dataclass(frozen=True)
class Task:
    """An environment, the algorithms of `auto` in it, and how long each configuration trains.

    seconds  CPU seconds of training of one curve; looks come on top. A member of a cohort has its
             share of these
    """

    environment: str
    seconds: float
    algorithms: tuple[str, ...] = ("ppo", "td3", "sac")


DISCRETE = ("ppo", "d3qn", "discrete_sac")
TASKS = (
    Task("CartPole-v1", 10.0, DISCRETE),
    Task("MountainCarContinuous-v0", 10.0),
    Task("Pendulum-v1", 10.0),
    Task("LunarLander-v3", 60.0, DISCRETE),
    Task("Hopper-v5", 60.0),
    Task("HalfCheetah-v5", 60.0),
)


@dataclass(frozen=True)
class Configuration:
    """A place of the list: an algorithm and all of its hyperparameters."""

    number: int
    algorithm: str
    hyperparameters: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """Of the agent that is trained with it."""
        return 1000 + self.number

    def settings(self, task: Task) -> str:
        """A digest of all that a curve depends on: with other settings it is another curve."""
        all_of_it = [
            self.algorithm,
            self.hyperparameters,
            task.seconds,
            LOOKS,
            EPISODES,
            LAST_EPISODES,
            LAST_LOOKS,
        ]
        return hashlib.sha256(
            json.dumps(all_of_it, sort_keys=True, default=list).encode()
        ).hexdigest()[:8]


def configurations(task: Task, count: int = CONFIGURATIONS) -> list[Configuration]:
    """The first `count` places: the defaults of each algorithm, then a point of each algorithm's
    Sobol sequence, then the next. Of a longer list a shorter one is the beginning."""
    search = Search(algorithms=tuple(map(AlgorithmShare, task.algorithms)))
    space = read_competition(
        leaderboard_pb2.LeaderboardSpec(search=search_to_message(search))
    ).space
    found = []
    for number in range(count):
        turn, place = divmod(number, len(task.algorithms))
        algorithm = task.algorithms[place]
        found.append(Configuration(number, algorithm, configuration(space, algorithm, turn, SEED)))
    return found


def chunks(missing: Sequence[Configuration], size: int) -> list[list[Configuration]]:
    """The cohorts to train: at most `size` configurations of one algorithm and shape."""
    by_shape: dict[object, list[Configuration]] = {}
    for each in missing:
        by_shape.setdefault(shape_of(each.algorithm, each.hyperparameters), []).append(each)
    return [
        group[first : first + size]
        for group in by_shape.values()
        for first in range(0, len(group), size)
    ]
