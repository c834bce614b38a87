"""Gymnasium's classic control, in torch."""

from __future__ import annotations

import math

from podracer_core.catalogue.environments.info import EnvironmentInfo
from podracer_core.catalogue.spaces import BoxSpace, DiscreteSpace

__all__ = ["CLASSIC_CONTROL"]

_CART_POLE_HIGH = (4.8, math.inf, 24 * math.pi / 180, math.inf)

CLASSIC_CONTROL = (
    EnvironmentInfo(
        id="CartPole-v1",
        description="Balance a pole on a cart by pushing it left or right; 1 a step, 500 at most",
        backend="torch",
        devices=("cpu", "cuda"),
        observation_space=BoxSpace(tuple(-high for high in _CART_POLE_HIGH), _CART_POLE_HIGH, (4,)),
        action_space=DiscreteSpace(2),
        max_episode_steps=500,
        factory="podracer_core.environments.cartpole:CartPole",
    ),
    EnvironmentInfo(
        id="Pendulum-v1",
        description="Swing a pendulum up and hold it with a weak motor; about -150 an episode is good, 0 the best",
        backend="torch",
        devices=("cpu", "cuda"),
        observation_space=BoxSpace((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0), (3,)),
        action_space=BoxSpace(-2.0, 2.0, (1,)),
        max_episode_steps=200,
        factory="podracer_core.environments.pendulum:Pendulum",
    ),
)
