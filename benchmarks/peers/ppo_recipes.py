"""What the systems of benchmarks/peers_ppo.py train, and with which settings. Standard library
only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

RecipeName = Literal["same", "best", "published"]


@dataclass(frozen=True)
class Task:
    """An environment, with the returns to be reached one after the other.

    arguments  of Gymnasium's class, that make it the task that ours is
    limit_s    of a run to the targets, from the start of its process
    """

    environment: str
    targets: tuple[float, ...]
    limit_s: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """PPO's settings, by our names. Rows of a rollout are num_envs x horizon.

    orthogonal  initial weights; None: as the library has it
    """

    num_envs: int
    horizon: int
    minibatch_size: int
    epochs: int
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    max_gradient_norm: float = 0.5
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    initial_log_std: float = 0.0
    orthogonal: bool | None = None

    @property
    def digest(self) -> str:
        """Eight characters that are others for other settings."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Order:
    """What one process is to do.

    library      sb3, sbx, rllib or podracer
    threads      of torch, MuJoCo and JAX
    env_runners  RLlib's
    speed_s      how long steps/s are measured; 0: train until the targets are reached
    """

    library: str
    environment: str
    recipe: RecipeName
    seed: int
    threads: int
    env_runners: int = 0
    speed_s: float = 0.0


_NO_CONTACT_FORCES = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "HalfCheetah-v5": {},
    "Hopper-v5": {},
    "Walker2d-v5": {},
    "Ant-v5": _NO_CONTACT_FORCES,
    "Humanoid-v5": _NO_CONTACT_FORCES,
}
"""Of Gymnasium's classes, that make them the tasks that ours are."""

TASKS = {
    task.environment: task
    for task in (
        # As ours, and as Ant-v4, which the published settings are for, was by default: no contact
        # forces. Standing still for an episode is worth 998, so 1,000 is reached by chance now and
        # then; 2,000 takes running.
        Task("Ant-v5", (1000.0, 2000.0), 900.0, ARGUMENTS["Ant-v5"]),
        Task("HalfCheetah-v5", (2000.0,), 600.0),
    )
}

SAME = Recipe(
    num_envs=64, horizon=64, minibatch_size=1024, epochs=10, initial_log_std=-0.5, orthogonal=True
)
"""Of everybody in the comparison with the same settings: those of benchmarks/ant.py."""

BEST = {"Ant-v5": SAME, "HalfCheetah-v5": SAME}
"""What gets our job to its targets soonest. The peers get it, too, beside their published
settings."""

ZOO = {
    "Ant-v5": Recipe(num_envs=1, horizon=2048, minibatch_size=64, epochs=10),
    "HalfCheetah-v5": Recipe(
        num_envs=1,
        horizon=512,
        minibatch_size=64,
        epochs=20,
        learning_rate=2.0633e-5,
        gamma=0.98,
        gae_lambda=0.92,
        clip_range=0.1,
        entropy_coefficient=0.000401762,
        value_coefficient=0.58096,
        max_gradient_norm=0.8,
        hidden_sizes=(256, 256),
        activation="relu",
        initial_log_std=-2.0,
        orthogonal=False,
    ),
}
"""Published: Ant-v4 and HalfCheetah-v4 in hyperparams/ppo.yml of rl-baselines3-zoo, which SBX
refers to."""


def recipe_of(name: RecipeName, environment: str) -> Recipe:
    """RLlib's published settings are not among them."""
    return {"same": SAME, "best": BEST[environment], "published": ZOO[environment]}[name]


def hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """For our PPO. Its initial weights are always orthogonal, and its critic's loss is half of the
    peers'."""
    ours = {
        key: value for key, value in asdict(recipe).items() if key not in ("num_envs", "orthogonal")
    }
    return ours | {"value_coefficient": 2.0 * recipe.value_coefficient}
