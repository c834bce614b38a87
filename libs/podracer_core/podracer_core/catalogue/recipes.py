"""What is usual for a kind of task on a device: the one table of the defaults of `train` and of
jobs.

A row is a kind of task, or one task by its id; a column is the device that trains. The description
of an environment may have a row of its own. Explicit values always win."""

from __future__ import annotations

from collections.abc import Mapping

from podracer_core.catalogue.environments import EnvironmentSpec, Recipe, find_environment
from podracer_core.catalogue.ranges import HyperparameterValue

__all__ = ["RECIPES", "Recipe", "find_recipe"]

_PROCESSES = Recipe("benchmarks/auto_and_budget.md")

_WARP_PPO: Mapping[str, HyperparameterValue] = {
    "horizon": 16,
    "epochs": 4,
    "desired_kl": 0.01,
    "hidden_sizes": (256, 128, 64),
    "activation": "elu",
}

_ROBOTS = {
    # A GPU steps thousands of worlds in hardly more time than a hundred, but a policy learns by its
    # number of updates: short rollouts. PPO's learning rate of 1e-3 is where `desired_kl` begins.
    "cpu": Recipe("benchmarks/returns.md"),
    "cuda": Recipe("benchmarks/gpu.md", 8192, 128, 128, {"ppo": _WARP_PPO}),
}

RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "mujoco": _ROBOTS,
    "mjlab": _ROBOTS,
    # Classic control and other environments that are batches of tensors.
    "torch": {
        "cpu": Recipe("benchmarks/ppo_cartpole.md", cohort_envs=256),
        "cuda": Recipe("benchmarks/gpu.md", 16384, 128, 128, {"ppo": {"horizon": 32, "epochs": 4}}),
    },
    # What steps in processes of its own, on the CPU: users' environments, and Gymnasium's.
    "processes": {"cpu": _PROCESSES, "cuda": _PROCESSES},
}


def find_recipe(spec: EnvironmentSpec, device: str, *, is_batched: bool = False) -> Recipe:
    """The cell of an environment. `is_batched`: a class that steps it as a batch of tensors is
    known; of built-in environments the catalogue knows. `device`: "cuda", "cuda:1"; any other is
    the CPU."""
    info = find_environment(spec.id) if spec.id else None
    place = "cuda" if device.startswith("cuda") else "cpu"
    if spec.isolation:
        return RECIPES["processes"][place]
    if info is not None and place in info.recipes:
        return info.recipes[place]
    kind = "torch" if is_batched else "processes"
    names = (spec.id, "" if info is None else info.backend)
    return RECIPES[next((name for name in names if name in RECIPES), kind)][place]
