"""Noise on an actor's weights: how much, where, and that it follows from the seed alone."""

from __future__ import annotations

import gymnasium
import torch

from podracer_core.algorithms import perturb_actor
from podracer_core.networks import Architecture, NetworkActor, ValueHead

SPACE = gymnasium.spaces.Box(-1, 1, (20,))


def actor(ensemble: int, members: int = 3) -> NetworkActor:
    head = ValueHead(gymnasium.spaces.Discrete(6), dueling=False)
    architecture = Architecture.of(SPACE, (40, 50), head.output_size)
    made = NetworkActor.idle(
        architecture, head, SPACE, members, "cpu", normalize=True, ensemble=ensemble
    )
    torch.manual_seed(0)
    for scale, tensor in zip(
        (1.0, 1.0, 5.0, 5.0, 0.2, 0.2), made.network.tensors.values(), strict=True
    ):
        tensor.normal_(std=scale)
    return made


def test_each_layer_gets_noise_in_proportion_to_its_own_spread_and_biases_stay():
    for ensemble in (1, 4):
        changed, before = actor(ensemble), actor(ensemble)
        perturb_actor(changed, 1, 0.1, seed=5)
        own = slice(ensemble, 2 * ensemble)
        for name, tensor in changed.network.tensors.items():
            moved = tensor - before.network.tensors[name]
            if name.endswith("bias"):
                assert (moved == 0).all()
                continue
            assert (moved[:ensemble] == 0).all()
            assert (moved[2 * ensemble :] == 0).all()
            share = moved[own].flatten(1).std(1) / before.network.tensors[name][own].flatten(1).std(
                1
            )
            torch.testing.assert_close(share, torch.full((ensemble,), 0.1), rtol=0.2, atol=0)
            noise = moved[own].flatten(1)
            if ensemble > 1:
                assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.25


def test_the_noise_follows_from_the_seed_alone():
    first, second, other = actor(2), actor(2), actor(2)
    for made, member, seed in ((first, 0, 5), (second, 2, 5), (other, 0, 6)):
        for weight in made.network.weights:
            weight.copy_(weight[:2].repeat(3, 1, 1))  # all members alike
        perturb_actor(made, member, 0.1, seed)
    for mine, theirs, another in zip(
        first.network.weights, second.network.weights, other.network.weights, strict=True
    ):
        assert torch.equal(mine[:2], theirs[4:])
        assert not torch.allclose(mine[:2], another[:2], rtol=0.1)
