"""What is usual for a kind of task on a device: the one table of the defaults of `train` and of
jobs.

A row is a kind of task, or one task by its id; a column is the device that trains. Explicit values
always win."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.catalogue.ranges import HyperparameterValue


@dataclass(frozen=True, slots=True)
class Recipe:
    """A cell of the table.

    evidence         the document with the measurement, in docs/
    cohort_envs      environments of a cohort that learns from rollouts, whose members share them
    member_envs      at least so many of each member
    replaying_envs   of a member that learns from replay: it matters more how often it learns
                     between two steps
    hyperparameters  by algorithm, those that differ from its defaults or from its value in a search
    """

    evidence: str
    cohort_envs: int = 0
    member_envs: int = 16
    replaying_envs: int = 8
    hyperparameters: Mapping[str, Mapping[str, HyperparameterValue]] = field(default_factory=dict)

    def envs_per_member(self, members: int, *, on_policy: bool) -> int:
        """The environments of each of `members`."""
        return (
            max(self.member_envs, self.cohort_envs // members) if on_policy else self.replaying_envs
        )


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
    "StockTrading-v0": {
        "cpu": Recipe("benchmarks/trading.md", cohort_envs=256),
        "cuda": Recipe("benchmarks/trading.md", 4096, 128, 128),
    },
    # What steps in processes of its own, on the CPU: users' environments, and Gymnasium's.
    "processes": {"cpu": _PROCESSES, "cuda": _PROCESSES},
}


def find_recipe(spec: EnvironmentSpec, device: str, *, is_batched: bool = False) -> Recipe:
    """The cell of an environment. `is_batched`: a class that steps it as a batch of tensors is
    known; of built-in environments the catalogue knows. `device`: "cuda", "cuda:1"; any other is
    the CPU."""
    backend = find_environment(spec.id).backend if spec.id else ""
    kind = next(
        (name for name in (spec.id, backend) if name in RECIPES),
        "torch" if is_batched else "processes",
    )
    return RECIPES["processes" if spec.isolation else kind][
        "cuda" if device.startswith("cuda") else "cpu"
    ]
