"""Noise on a copied agent's weights, so that a child does not act exactly as its parent."""

from __future__ import annotations

import torch

from podracer_core.networks.actor import NetworkActor
from podracer_core.random_numbers import normal
from podracer_core.random_numbers.streams import perturbation_key


@torch.no_grad()
def perturb_actor(actor: NetworkActor, member: int, scale: float, seed: int) -> None:
    """Add noise to the dense layers of one member's networks, in place.

    Each layer's weights get `scale` times their own standard deviation; biases and convolutions stay. Of an ensemble
    all N networks of the member change, each by noise of its own. The noise follows from `seed` alone.
    """
    key = perturbation_key(seed).to(actor.device)
    start = 0
    for stacked in actor.network.weights:
        ensemble = stacked.shape[0] // actor.members
        weight = stacked[member * ensemble : (member + 1) * ensemble]  # [N, in, out]
        noise = normal(key, torch.arange(start, start + weight.numel(), device=actor.device)).view_as(weight)
        weight += scale * weight.std((1, 2), keepdim=True) * noise
        start += weight.numel()
