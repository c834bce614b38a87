"""Gymnasium's classic control, batched in torch."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.environments.classic_control.acrobot import Acrobot
    from podracer_core.environments.classic_control.cartpole import CartPole
    from podracer_core.environments.classic_control.mountain_car import (
        MountainCar, MountainCarContinuous,
    )
    from podracer_core.environments.classic_control.pendulum import Pendulum
else:
    __all__, __getattr__ = exports(__name__)
