"""A point that chases another one, in torch."""

from __future__ import annotations

import math

from podracer_core.catalogue import ArgumentInfo, BoxSpace, DiscreteSpace, EnvironmentInfo

_DIMENSIONS = ArgumentInfo("dimensions", "of the space in which the points move", 2)

BUILT_IN = (
    EnvironmentInfo(
        id="PointChasing-v0",
        description="Accelerate until a drifting point is caught, in any number of dimensions; 2 "
        "is good in two",
        backend="torch",
        devices=("cpu", "cuda"),
        observation_space=BoxSpace(-math.inf, math.inf, (8,)),
        action_space=BoxSpace(-1.0, 1.0, (2,)),
        max_episode_steps=1024,
        factory="podracer_core.environments.point_chasing:PointChasing",
        arguments=(_DIMENSIONS,),
    ),
    EnvironmentInfo(
        id="PointChasingDiscrete-v0",
        description="The same chase, with -1, 0 or 1 in each dimension; 2 is good in two",
        backend="torch",
        devices=("cpu", "cuda"),
        observation_space=BoxSpace(-math.inf, math.inf, (8,)),
        action_space=DiscreteSpace(9),
        max_episode_steps=1024,
        factory="podracer_core.environments.point_chasing:PointChasingDiscrete",
        arguments=(
            _DIMENSIONS,
            ArgumentInfo(
                "factored",
                "actions are a choice for each dimension instead of one out of 3^d",
                False,
            ),
        ),
    ),
)
