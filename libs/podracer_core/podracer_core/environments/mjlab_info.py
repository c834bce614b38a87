"""The description of mjlab's tasks, without starting one."""

from __future__ import annotations

from podracer_core.catalogue import ArgumentInfo, EnvironmentInfo

BUILT_IN = (
    EnvironmentInfo(
        id="mjlab",
        description="A task of mjlab, by its name: robots on MuJoCo Warp",
        backend="torch",
        devices=("cpu", "cuda"),
        factory="podracer_core.environments.rsl_rl:Mjlab",
        arguments=(
            ArgumentInfo(
                "task",
                "its name in mjlab",
                required=True,
                example="Mjlab-Velocity-Flat-Unitree-Go1",
            ),
        ),
    ),
)
