"""Observations to try a policy on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.checkpoint.ensemble import load_ensemble
from podracer_core.checkpoint.evaluation import make_environment_for
from podracer_core.checkpoint.load import Checkpoint
from podracer_core.checkpoint.policy import load_actor, random_observations

_MADE_UP = 64
_ENVIRONMENTS, _STEPS = 8, 32


def likely_observations(checkpoint: Checkpoint) -> Tensor:
    """Made-up ones, always the same, [N, *obs]: random numbers, and such with mean and spread of those in training."""
    plain = random_observations(checkpoint, _MADE_UP)
    normalizer = checkpoint.groups.get("normalizer", {})
    if not plain.is_floating_point() or not normalizer:
        return plain
    rows = plain.flatten(1) * normalizer["observation_scale"] + normalizer["observation_mean"]
    return torch.cat([plain, rows.view_as(plain)])


def played_observations(checkpoints: Sequence[Checkpoint], spec: EnvironmentSpec, rule: str | None = None) -> Tensor:
    """Real ones, always the same: what one policy, or several that act together, see in the first 32 steps of eight
    episodes of an environment, [256, *obs]; rows of a world that broke are left out.

    Raises as `evaluate_checkpoints`.
    """
    actor = load_actor(checkpoints[0]) if len(checkpoints) == 1 else load_ensemble(checkpoints, rule)
    environment = make_environment_for(checkpoints[0], spec, _ENVIRONMENTS, "cpu")
    seen = []
    try:
        observation, mask = environment.reset(torch.arange(_ENVIRONMENTS)), environment.action_mask
        with torch.inference_mode():
            for _ in range(_STEPS):
                seen.append(observation.clone())
                masks = None if mask is None else mask.unsqueeze(0)
                step = environment.step(actor.greedy(observation.unsqueeze(0), masks)[0])
                observation, mask = step.observation, step.action_mask
    finally:
        environment.close()
    rows = torch.cat(seen)
    return rows[torch.isfinite(rows.flatten(1).double()).all(1)]
