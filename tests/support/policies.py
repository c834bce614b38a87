"""Checkpoints of policies that no job has trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import torch

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec, to_json
from podracer_core.checkpoint import Checkpoint
from podracer_core.collect import Collector
from podracer_core.environments import from_gymnasium, make_vec_environment

Space = gymnasium.Space[Any]


def random_policy(
    algorithm: str,
    observations: Space,
    actions: Space,
    seed: int,
    environment: str = "Pendulum-v1",
    **shared: Any,
) -> Checkpoint:
    """Weights that matter, and a normalizer that has seen something."""
    cohort = CohortConfig(algorithm, (MemberConfig(f"a{seed}", seed),), shared)
    state = algorithm_class(algorithm)(cohort, observations, actions).member_state(0)
    generator = torch.Generator().manual_seed(seed)
    groups = {group: dict(tensors) for group, tensors in state.items()}
    for name, tensor in groups["actor"].items():
        groups["actor"][name] = torch.randn(tensor.shape, generator=generator)
    for name, shift in (("observation_mean", 0.0), ("observation_scale", 1.0)):
        size = groups["normalizer"][name].shape
        groups["normalizer"][name] = shift + 0.5 * torch.rand(size, generator=generator)
    return Checkpoint(
        groups,
        policy_metadata(f"a{seed}", algorithm, shared, environment, observations, actions),
        {},
    )


def with_original_space(checkpoint: Checkpoint, space: Space) -> Checkpoint:
    """As it is stored of an environment whose observations its batch has flattened."""
    return replace(
        checkpoint,
        metadata={**checkpoint.metadata, "observation_space": to_json(from_gymnasium(space))},
    )


def with_origin(checkpoint: Checkpoint, *origin: float) -> Checkpoint:
    """As it is stored of an environment whose first numbers float32 cannot tell apart."""
    environment = {**checkpoint.metadata["environment"], "observation_origin": list(origin)}
    return replace(checkpoint, metadata={**checkpoint.metadata, "environment": environment})


def trained_policies(
    environment: str, seeds: list[int], updates: int, horizon: int, envs: int, **shared: Any
) -> list[Checkpoint]:
    """PPO agents with these seeds, trained as one cohort."""
    torch.set_num_threads(1)
    shared |= {"horizon": horizon}
    batch = make_vec_environment(EnvironmentSpec(id=environment), envs * len(seeds))
    cohort = CohortConfig("ppo", tuple(MemberConfig(f"a{seed}", seed) for seed in seeds), shared)
    algorithm = algorithm_class("ppo")(cohort, batch.observation_space, batch.action_space)
    collector = Collector(batch, algorithm.actor, torch.tensor(seeds))
    for _ in range(updates):
        algorithm.update(collector.collect(horizon, policy_version=algorithm.version))
    spaces = batch.observation_space, batch.action_space
    return [
        Checkpoint(
            algorithm.member_state(member),
            policy_metadata(f"a{seed}", "ppo", shared, environment, *spaces),
            {},
        )
        for member, seed in enumerate(seeds)
    ]


def policy_metadata(
    agent: str,
    algorithm: str,
    shared: dict[str, Any],
    environment: str,
    observations: Space,
    actions: Space,
) -> dict[str, Any]:
    """What a checkpoint of a learner says of itself, without an evaluation."""
    return {
        "agent": f"projects/default/jobs/j/agents/{agent}",
        "algorithm": algorithm,
        "hyperparameters": shared,
        "environment": EnvironmentSpec(id=environment).to_metadata(),
        "observation_space": to_json(from_gymnasium(observations)),
        "action_space": to_json(from_gymnasium(actions)),
        "env_steps": 4096,
    }
