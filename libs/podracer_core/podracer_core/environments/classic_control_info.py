"""Gymnasium's classic control, in torch."""

from __future__ import annotations

import math

from podracer_core.catalogue import ArgumentInfo, BoxSpace, DiscreteSpace, EnvironmentInfo

_CART_POLE_HIGH = (4.8, math.inf, 24 * math.pi / 180, math.inf)
_ACROBOT_HIGH = (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
_MOUNTAIN_CAR_LOW = (-1.2, -0.07)
_MOUNTAIN_CAR_HIGH = (0.6, 0.07)
_GOAL_VELOCITY = ArgumentInfo("goal_velocity", "how fast the car must at least be at the top", 0.0)

CART_POLE = EnvironmentInfo(
    id="CartPole-v1",
    description="Balance a pole on a cart by pushing it left or right; 1 a step, 500 at most",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(tuple(-high for high in _CART_POLE_HIGH), _CART_POLE_HIGH, (4,)),
    action_space=DiscreteSpace(2),
    max_episode_steps=500,
    most_reward=1.0,
    factory="podracer_core.environments.classic_control.cartpole:CartPole",
    arguments=(
        ArgumentInfo(
            "sutton_barto_reward",
            "reward -1 for falling and 0 otherwise, instead of 1 a step",
            False,
        ),
    ),
)

PENDULUM = EnvironmentInfo(
    id="Pendulum-v1",
    description="Swing a pendulum up and hold it with a weak motor; about -150 an episode is good, "
    "0 the best",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0), (3,)),
    action_space=BoxSpace(-2.0, 2.0, (1,)),
    max_episode_steps=200,
    most_reward=0.0,
    factory="podracer_core.environments.classic_control.pendulum:Pendulum",
    arguments=(ArgumentInfo("g", "acceleration of gravity, m/s²", 10.0),),
)

ACROBOT = EnvironmentInfo(
    id="Acrobot-v1",
    description="Swing the end of a double pendulum up by a motor in its middle joint; -1 a step, "
    "-100 is good",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(tuple(-high for high in _ACROBOT_HIGH), _ACROBOT_HIGH, (6,)),
    action_space=DiscreteSpace(3),
    max_episode_steps=500,
    most_reward=0.0,
    factory="podracer_core.environments.classic_control.acrobot:Acrobot",
    arguments=(
        ArgumentInfo(
            "book_or_nips", "equations of Sutton and Barto's book, or nips: of the paper", "book"
        ),
        ArgumentInfo("dt", "seconds a step", 0.2),
        ArgumentInfo(
            "torque_noise_max", "N m; a number uniform in ± this is added to the torque", 0.0
        ),
    ),
)

MOUNTAIN_CAR = EnvironmentInfo(
    id="MountainCar-v0",
    description="Rock a weak car out of a valley, by one of three pushes; -1 a step, -110 is good",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(_MOUNTAIN_CAR_LOW, _MOUNTAIN_CAR_HIGH, (2,)),
    action_space=DiscreteSpace(3),
    max_episode_steps=200,
    most_reward=0.0,
    factory="podracer_core.environments.classic_control.mountain_car:MountainCar",
    arguments=(_GOAL_VELOCITY,),
)

MOUNTAIN_CAR_CONTINUOUS = EnvironmentInfo(
    id="MountainCarContinuous-v0",
    description="Rock a weak car out of a valley, burning little fuel; 100 at the top, 90 is good",
    backend="torch",
    devices=("cpu", "cuda"),
    observation_space=BoxSpace(_MOUNTAIN_CAR_LOW, _MOUNTAIN_CAR_HIGH, (2,)),
    action_space=BoxSpace(-1.0, 1.0, (1,)),
    max_episode_steps=999,
    factory="podracer_core.environments.classic_control.mountain_car:MountainCarContinuous",
    arguments=(_GOAL_VELOCITY,),
)

BUILT_IN = (CART_POLE, PENDULUM, ACROBOT, MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS)
