"""What the systems of benchmarks/peers_ppo.py train, and with which settings. Standard library
only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

RecipeName = Literal["same", "published"]


@dataclass(frozen=True)
class Task:
    """An environment, with the returns to be reached one after the other.

    limit_s       of a run to the targets, from the start of its process
    most_seconds  to a target, ours over the best peer's, that we want
    least         steps/s, ours over the best peer's, that we want, by the peers' recipe; empty: no
                  steps/s are measured
    systems       by name; empty: all that train in MuJoCo
    job           our job file for the targets, below the repository; else one with our recipe
    """

    environment: str
    targets: tuple[float, ...]
    limit_s: float
    most_seconds: float = 0.2
    least: Mapping[str, float] = field(default_factory=dict)
    systems: tuple[str, ...] = ()
    job: str = ""


@dataclass(frozen=True)
class Recipe:
    """PPO's settings, by our names. Rows of a rollout are num_envs x horizon.

    orthogonal      initial weights; None: as the library has it
    normalize       observations and rewards, by running statistics
    schedule_steps  in which learning rate and clip range fall to 0; 0: they are constant
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
    normalize: bool = True
    schedule_steps: int = 0


@dataclass(frozen=True)
class Order:
    """What one process is to do.

    library      sb3, sbx, rllib or podracer
    members      of ours, each with the recipe's environments
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
    members: int = 1


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
        Task("Ant-v5", (1000.0, 2000.0), 900.0, least={"same": 3.0, "published": 5.0}),
        Task("HalfCheetah-v5", (2000.0,), 600.0, least={"same": 2.0, "published": 6.0}),
        Task(
            "CartPole-v1",
            (475.0,),
            240.0,
            least={"same": 2.5, "published": 20.0, "same, cohort": 5.0, "published, cohort": 40.0},
            systems=("ours", "ours_8", "sb3_same", "sb3_published"),
            job="examples/cartpole.yaml",
        ),
        Task(
            "LunarLander-v3",
            (200.0,),
            900.0,
            most_seconds=1.0,
            systems=("ours", "sb3_published"),
            job="benchmarks/jobs/lunar_lander.yaml",
        ),
    )
}

SAME = Recipe(
    num_envs=64, horizon=64, minibatch_size=1024, epochs=10, initial_log_std=-0.5, orthogonal=True
)
"""Of everybody in the comparison with the same settings, in MuJoCo."""

CART_POLE = Recipe(
    num_envs=256,
    horizon=32,
    minibatch_size=2048,
    epochs=4,
    learning_rate=1e-3,
    gamma=0.98,
    gae_lambda=0.8,
    normalize=False,
)

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
    "CartPole-v1": Recipe(
        num_envs=8,
        horizon=32,
        minibatch_size=256,
        epochs=20,
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=0.8,
        normalize=False,
        schedule_steps=100_000,
    ),
    "LunarLander-v3": Recipe(
        num_envs=16,
        horizon=1024,
        minibatch_size=64,
        epochs=4,
        gamma=0.999,
        gae_lambda=0.98,
        entropy_coefficient=0.01,
        normalize=False,
    ),
}
"""Published: hyperparams/ppo.yml of rl-baselines3-zoo, which SBX refers to; Ant-v4, HalfCheetah-v4
and LunarLander-v2 there."""


_NOT_OURS = ("num_envs", "orthogonal", "normalize", "schedule_steps")


def recipe_of(name: RecipeName, environment: str) -> Recipe:
    """RLlib's published settings are not among them."""
    same = CART_POLE if environment == "CartPole-v1" else SAME
    return ZOO[environment] if name == "published" else same


def hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """For our PPO. Its initial weights are always orthogonal, and its critic's loss is half of the
    peers'."""
    ours = {key: value for key, value in asdict(recipe).items() if key not in _NOT_OURS}
    return ours | {"value_coefficient": 2.0 * recipe.value_coefficient}
