"""Stacked networks with and without convolutions are many single ones: same results, same
gradients, nothing shared."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from podracer_core.errors import InvalidInput
from podracer_core.networks import Architecture, StackedNetwork, StackedParameters, image_shape
from support.errors import raises

GROUPS, ROWS, HIDDEN, OUTPUTS, ACTIONS = 3, 5, (8, 6), 4, 2
SPACES: dict[str, gymnasium.Space[Any]] = {
    "vector": gymnasium.spaces.Box(-1, 1, (7,)),
    "channels_last": gymnasium.spaces.Box(0, 255, (44, 36, 3), np.uint8),
    "channels_first": gymnasium.spaces.Box(0, 255, (2, 36, 52), np.uint8),
}
IMAGES = ("channels_last", "channels_first")
EVERY = pytest.mark.parametrize("kind", SPACES)


def stacked(kind: str, action_size: int = 0) -> tuple[StackedParameters, StackedNetwork]:
    torch.manual_seed(0)
    architecture = Architecture.of(SPACES[kind], HIDDEN, OUTPUTS, "tanh", action_size)
    parameters = StackedParameters(GROUPS, architecture.shapes())
    parameters.flat.normal_(std=0.1)
    return parameters, StackedNetwork.of(architecture, parameters)


def observations(kind: str, groups: int = GROUPS) -> torch.Tensor:
    """[G, B, *obs], 0 … 1 where they are pixels"""
    shape = SPACES[kind].shape
    assert shape is not None
    if kind == "vector":
        return torch.randn(groups, ROWS, *shape)
    return torch.randint(256, (groups, ROWS, *shape)).float() / 255


class NatureCNN(nn.Module):
    """As Mnih et al., 2015 describe it, written once more with torch.nn; its images have their
    channels first."""

    def __init__(self, network: StackedNetwork, group: int) -> None:
        super().__init__()
        tensors = {name: tensor[group].detach() for name, tensor in network.tensors.items()}
        channels = (
            tensors["convolutions.0.weight"].shape[1] if "convolutions.0.weight" in tensors else 0
        )
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
            if channels
            else []
        )
        for layer, convolution in enumerate(self.convolutions):
            convolution.weight.data = tensors[f"convolutions.{layer}.weight"].clone()
            convolution.bias.data = tensors[f"convolutions.{layer}.bias"].clone()
        self.linears = nn.ModuleList()
        for layer in range(len(HIDDEN) + 1):
            weight = tensors[f"layers.{layer}.weight"]
            linear = nn.Linear(*weight.shape)
            linear.weight.data, linear.bias.data = (
                weight.t().clone(),
                tensors[f"layers.{layer}.bias"][0].clone(),
            )
            self.linears.append(linear)

    def forward(
        self, observation: torch.Tensor, action: torch.Tensor | None = None
    ) -> torch.Tensor:
        for convolution in self.convolutions:
            observation = convolution(observation).relu()
        hidden = observation.flatten(1)
        if action is not None:
            hidden = torch.cat([hidden, action], -1)
        for linear in self.linears[:-1]:
            hidden = linear(hidden).tanh()
        return self.linears[-1](hidden)


@EVERY
@pytest.mark.parametrize("action_size", [0, ACTIONS])
def test_results_and_gradients_equal_single_networks(kind, action_size):
    parameters, network = stacked(kind, action_size)
    inputs = observations(kind)
    action = torch.randn(GROUPS, ROWS, ACTIONS, requires_grad=True) if action_size else None
    upstream = torch.randn(GROUPS, ROWS, OUTPUTS)
    output = network(inputs.flatten(2), action)
    output.backward(upstream)
    parameters.gather_gradient()
    for group in range(GROUPS):
        peer = NatureCNN(network, group)
        image = inputs[group].permute(0, 3, 1, 2) if kind == "channels_last" else inputs[group]
        own_action = None if action is None else action[group].detach().clone().requires_grad_()
        peer_output = peer(image, own_action)
        peer_output.backward(upstream[group])
        torch.testing.assert_close(output[group], peer_output, rtol=1e-4, atol=1e-5)
        if action is not None and own_action is not None and action.grad is not None:
            torch.testing.assert_close(action.grad[group], own_action.grad, rtol=1e-4, atol=1e-5)
        for name, layers in (("convolutions", peer.convolutions), ("layers", peer.linears)):
            for index, layer in enumerate(layers):
                weight, bias = (
                    parameters.gradient_of(f"{name}.{index}.{part}")[group]
                    for part in ("weight", "bias")
                )
                expected = layer.weight.grad if name == "convolutions" else layer.weight.grad.t()
                torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(bias.flatten(), layer.bias.grad, rtol=1e-3, atol=1e-4)


@EVERY
def test_no_gradient_leaks_from_one_network_to_another(kind):
    parameters, network = stacked(kind)
    network(observations(kind).flatten(2))[1].sum().backward()
    parameters.gather_gradient()
    assert parameters.gradient[1].abs().sum() > 0
    assert parameters.gradient[0].abs().sum() == 0
    assert parameters.gradient[2].abs().sum() == 0


@EVERY
def test_a_module_of_one_network_acts_alike(kind):
    _, network = stacked(kind)
    inputs = observations(kind).flatten(2)
    output = network(inputs).detach()
    for group in range(GROUPS):
        torch.testing.assert_close(
            network.module(group)(inputs[group]), output[group], rtol=1e-4, atol=1e-5
        )


@EVERY
def test_every_is_a_view_that_follows_and_has_no_gradients(kind):
    parameters, network = stacked(kind)
    view = network.every(1, 2)
    parameters.flat.mul_(0.5)
    inputs = observations(kind, 1).flatten(2)
    seen = view(inputs)
    assert not seen.requires_grad
    torch.testing.assert_close(
        seen, network(inputs.expand(GROUPS, -1, -1))[1:2].detach(), rtol=1e-4, atol=1e-6
    )


@EVERY
@pytest.mark.parametrize("initialization", ["orthogonal", "fan_in"])
def test_initial_weights_follow_from_each_networks_own_seed(kind, initialization):
    _, network = stacked(kind)
    _, other = stacked(kind)
    network.initialize(torch.tensor([4, 5, 6]), 0, initialization)
    other.initialize(torch.tensor([9, 4, 8]), 0, initialization)
    for name, tensor in network.tensors.items():
        assert torch.equal(tensor[0], other.tensors[name][1])
        assert name.endswith("bias") or not torch.isclose(tensor[0], tensor[1]).all()
    other.initialize(torch.tensor([9, 4, 8]), 1, initialization)
    assert not torch.isclose(
        network.tensors["layers.0.weight"][0], other.tensors["layers.0.weight"][1]
    ).any()


@EVERY
def test_orthogonal_weights_have_their_gain(kind):
    _, network = stacked(kind)
    network.initialize(torch.arange(GROUPS), 0, "orthogonal", last_gain=0.01)
    last = len(HIDDEN)
    for name, tensor in network.tensors.items():
        if name.endswith("bias"):
            assert (tensor == 0).all()
            continue
        # [G, in, out]
        matrix = (
            tensor.detach() if tensor.dim() == 3 else tensor.detach().flatten(2).transpose(1, 2)
        )
        small = matrix if matrix.shape[1] < matrix.shape[2] else matrix.transpose(1, 2)
        gain = 0.01 if name == f"layers.{last}.weight" else 2.0**0.5
        identity = gain**2 * torch.eye(small.shape[1]).expand(GROUPS, -1, -1)
        torch.testing.assert_close(small @ small.transpose(1, 2), identity, rtol=1e-4, atol=1e-5)


def test_fan_in_weights_are_within_torchs_own_bounds():
    _, network = stacked("channels_last")
    network.initialize(torch.arange(GROUPS), 0, "fan_in")
    for name, bound in (("convolutions.0", (3 * 64) ** -0.5), ("convolutions.2", (64 * 9) ** -0.5)):
        for part in ("weight", "bias"):
            values = network.tensors[f"{name}.{part}"].detach().abs()
            assert 0.8 * bound < values.max() <= bound


def test_which_boxes_are_images():
    assert image_shape(gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)) is not None
    assert image_shape(gymnasium.spaces.Box(0, 255, (128,), np.uint8)) is None
    assert image_shape(gymnasium.spaces.Box(0, 1, (84, 84, 4), np.float32)) is None
    first, last = image_shape(SPACES["channels_first"]), image_shape(SPACES["channels_last"])
    assert first is not None
    assert last is not None
    assert (first.height, first.width, first.channels, first.channels_last) == (36, 52, 2, False)
    assert (last.height, last.width, last.channels, last.channels_last) == (44, 36, 3, True)
    assert first.features == 64 * 1 * 3


def test_an_image_that_is_too_small_is_refused():
    small = gymnasium.spaces.Box(0, 255, (35, 80, 3), np.uint8)
    with raises(InvalidInput, "UNSUPPORTED_OBSERVATION_SPACE", match="too small"):
        Architecture.of(small, HIDDEN, OUTPUTS).shapes()
    Architecture.of(gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8), HIDDEN, OUTPUTS).shapes()


def test_other_observations_are_refused():
    with raises(InvalidInput, "UNSUPPORTED_OBSERVATION_SPACE", match="reads Box"):
        Architecture.of(gymnasium.spaces.Discrete(3), HIDDEN, OUTPUTS)
