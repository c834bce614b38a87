"""Which random stream is for what. Everything random about an agent follows from its seed and these words.

A word is used for one purpose only, so no two uses can draw the same numbers; an evaluation never sees an episode
that somebody has trained on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.random_numbers import derive_key, integers

_ENVIRONMENT = 1
_ACTION = 2
_EVALUATION = 3
_INITIALIZATION = 4
_MINIBATCH = 5
_PERTURBATION = 6
_REPLAY = 7
_UPDATE_NOISE = 8
_HAMILTONIAN = 9
_SUBSET = 10
_LEARNER = 11
_AGE = 12

# The purposes of evaluation episodes: each has its own, so that a candidate is not confirmed on what selected it.
SCREENING, ADMISSION, CONFIRMATION, COMPARISON = 0, 1, 2, 3


def environment_keys(seeds: Tensor, num_envs: int, first_environment: int = 0, session: int | Tensor = 0) -> Tensor:
    """Episode keys of training environments: seeds int64 [M] -> int64 [M, E]. A new session (int, or
    int64 [M]) has new episodes."""
    if isinstance(session, Tensor):
        session = session.view(-1, 1)
    return derive_key(seeds.view(-1, 1), _ENVIRONMENT, session, _indices(seeds, num_envs, first_environment))


def first_ages(keys: Tensor, episode_steps: int) -> Tensor:
    """How old the first episodes of training environments count as, in steps: 0 … episode_steps - 1, from each
    environment's key."""
    return integers(derive_key(keys, _AGE), 0, min(episode_steps, 1 << 31))


def action_keys(seeds: Tensor, num_envs: int, first_environment: int = 0) -> Tensor:
    """Action noise streams: seeds int64 [M] -> int64 [M, E]; the counter is the agent's own step count."""
    return derive_key(seeds.view(-1, 1), _ACTION, _indices(seeds, num_envs, first_environment))


def evaluation_seeds(job_seed: int, purpose: int, episodes: int, *, first: int = 0) -> list[int]:
    """Episode keys for an evaluation, not negative: `purpose` is SCREENING, one of the others above, or your own."""
    keys = derive_key(job_seed, _EVALUATION, purpose, torch.arange(first, first + episodes))
    return [int(key) for key in keys.bitwise_and(torch.iinfo(torch.int64).max)]


def initialization_keys(seeds: Tensor, network: int, layer: int) -> Tensor:
    """Keys of initial weights, int64 [M] -> [M]: `network` tells an algorithm's networks apart (actor, critic, …)."""
    return derive_key(seeds, _INITIALIZATION, network, layer)


def minibatch_keys(seeds: Tensor) -> Tensor:
    """Keys of minibatch permutations, int64 [M] -> [M]; the counter is the agent's own count of epochs."""
    return derive_key(seeds, _MINIBATCH)


def learner_seeds(seeds: Tensor, rank: int) -> Tensor:
    """What the updates of a learner draw by, int64 [M] -> [M]: several of one cohort draw different numbers. Those of
    rank 0 are the agents' own."""
    return derive_key(seeds, _LEARNER, rank) if rank else seeds


def replay_keys(seeds: Tensor) -> Tensor:
    """Keys of samples from a replay buffer, int64 [M] -> [M]; the counter goes on with every number drawn."""
    return derive_key(seeds, _REPLAY)


def update_noise_keys(seeds: Tensor) -> Tensor:
    """Keys of the noise in gradient steps (actions that are imagined), int64 [M] -> [M]."""
    return derive_key(seeds, _UPDATE_NOISE)


def subset_keys(seeds: Tensor) -> Tensor:
    """Keys of the choice of critics that give a target, int64 [M] -> [M]."""
    return derive_key(seeds, _SUBSET)


def hamiltonian_keys(seeds: Tensor) -> Tensor:
    """Keys of the windows that an H-term draws, int64 [M] -> [M]."""
    return derive_key(seeds, _HAMILTONIAN)


def perturbation_key(seed: int) -> Tensor:
    """The key of noise that is added to a copied agent's weights, int64 []."""
    return derive_key(seed, _PERTURBATION)


def _indices(seeds: Tensor, num_envs: int, first: int) -> Tensor:
    return torch.arange(first, first + num_envs, device=seeds.device)
