"""G networks of one shape: an observation (and perhaps an action) in, numbers out. Images go
through the convolutions of Mnih et al., 2015 (Nature 518), one group of channels a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from podracer_core.errors import InvalidInput
from podracer_core.networks.stacked_mlp import (
    StackedMLP,
    StackedParameters,
    mlp_shapes,
    orthogonal,
    uniform_fan_in,
)
from podracer_core.networks.stacked_residual import (
    ACTIVATIONS,
    StackedLayerNorm,
    StackedNormalized,
    StackedResidual,
    layer_norm_shapes,
    linear_of,
    normalized_shapes,
    residual_shapes,
)
from podracer_core.random_numbers import initialization_keys

# Channels, kernel and stride of each layer: Mnih et al., 2015, methods, "model architecture".
_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


@dataclass(frozen=True, slots=True)
class ImageShape:
    """An image as the environment gives it; `channels_last` where its last axis is the colours (or
    frames)."""

    height: int
    width: int
    channels: int
    channels_last: bool

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> ImageShape:
        """The images of an observation's shape: the smaller of the first and the last axis is that
        of the channels."""
        if len(shape) != 3:
            raise InvalidInput(f"an image has three dimensions, not {len(shape)}", shape=shape)
        if shape[2] <= shape[0]:
            return cls(*shape, channels_last=True)
        return cls(shape[1], shape[2], shape[0], channels_last=False)

    @property
    def features(self) -> int:
        """Numbers that come out of the last convolution. Raises InvalidInput for an image too small
        for it."""
        height, width = self.height, self.width
        for _, kernel, stride in _LAYERS:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if height < 1 or width < 1:
            raise InvalidInput(
                f"an image of {self.height} x {self.width} is too small for the convolutions; 36 x "
                "36 is the least",
                reason="UNSUPPORTED_OBSERVATION_SPACE",
            )
        return _LAYERS[-1][0] * height * width


def cnn_shapes(image: ImageShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one network's convolutions: weights [out, in, k, k], biases [out]."""
    shapes: dict[str, tuple[int, ...]] = {}
    channels = image.channels
    for layer, (outputs, kernel, _) in enumerate(_LAYERS):
        shapes[f"convolutions.{layer}.weight"] = (outputs, channels, kernel, kernel)
        shapes[f"convolutions.{layer}.bias"] = (outputs,)
        channels = outputs
    return shapes


@dataclass(frozen=True, slots=True)
class StackedCNN:
    """`tensors` as `cnn_shapes` names them, [G, …] each."""

    image: ImageShape
    tensors: Mapping[str, Tensor]

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the layers."""
        return tuple(stride for _, _, stride in _LAYERS)

    def __call__(self, images: Tensor) -> Tensor:
        """images [G, B, H * W * C], flattened as the environment has them, 0 … 1 -> features [G, B,
        F]."""
        groups, rows, _ = images.shape
        image = self.image
        if image.channels_last:
            pixels = images.view(groups, rows, image.height, image.width, image.channels).permute(
                1, 0, 4, 2, 3
            )
        else:
            pixels = images.view(groups, rows, image.channels, image.height, image.width).transpose(
                0, 1
            )
        # [B, G * C, H, W]
        hidden = pixels.reshape(rows, groups * image.channels, image.height, image.width)
        for layer, (_, _, stride) in enumerate(_LAYERS):
            weight = self.tensors[f"convolutions.{layer}.weight"].flatten(0, 1)
            bias = self.tensors[f"convolutions.{layer}.bias"].flatten()
            hidden = torch.conv2d(hidden, weight, bias, stride, groups=groups).relu()
        return hidden.reshape(rows, groups, self.image.features).transpose(0, 1)


_HIDDEN_GAIN = 2.0**0.5
_CONVOLUTIONS = 1000  # their layers' numbers begin here

Body = Literal["plain", "residual", "normalized", "layer_normalized"]
Normalizing = StackedResidual | StackedNormalized | StackedLayerNorm
_NORMALIZING: Mapping[str, Callable[[Sequence[int], str, dict[str, Tensor]], Normalizing]] = {
    "residual": StackedResidual,
    "normalized": StackedNormalized,
    "layer_normalized": StackedLayerNorm,
}
_SHAPES: Mapping[str, Callable[[Sequence[int]], dict[str, tuple[int, ...]]]] = {
    "residual": residual_shapes,
    "normalized": normalized_shapes,
    "layer_normalized": layer_norm_shapes,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a network: convolutions where it sees images, then `hidden_sizes`, then
    `outputs`.

    inputs       numbers in an observation
    image        what these are where they are an image's pixels
    action_size  numbers of an action that join what is seen (a critic's), 0 for none
    body         plain: linear layers and activations (`StackedMLP`); residual: a block for each of
                 `hidden_sizes` (`StackedResidual`), normalized: batch normalization
                 (`StackedNormalized`), layer_normalized: `StackedLayerNorm`; these are for
                 observations that are no images
    """

    inputs: int
    image: ImageShape | None
    hidden_sizes: tuple[int, ...]
    outputs: int
    activation: str = "tanh"
    action_size: int = 0
    body: Body = "plain"

    @classmethod
    def of(
        cls,
        space: gymnasium.Space[Any],
        hidden_sizes: Sequence[int],
        outputs: int,
        activation: str = "tanh",
        action_size: int = 0,
        body: Body = "plain",
    ) -> Architecture:
        """Networks for observations from `space`: a Box, and the pixels of an image if it is uint8
        of three dimensions.

        Raises InvalidInput for images with another body than the plain one.
        """
        image = image_shape(space)
        if image is not None and body != "plain":
            message = f"this network reads vectors of numbers, not images as {space} are"
            raise InvalidInput(message, reason="UNSUPPORTED_OBSERVATION_SPACE")
        return cls(
            observation_size(space),
            image,
            tuple(hidden_sizes),
            outputs,
            activation,
            action_size,
            body,
        )

    @property
    def dense_sizes(self) -> tuple[int, ...]:
        """Sizes of the layers after the convolutions: inputs, hidden sizes, outputs."""
        seen = self.inputs if self.image is None else self.image.features
        return (seen + self.action_size, *self.hidden_sizes, self.outputs)

    @property
    def is_mlp(self) -> bool:
        """Whether there is nothing but linear layers and activations."""
        return self.body == "plain" and self.image is None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of one network's parameters."""
        if self.body != "plain":
            return _SHAPES[self.body](self.dense_sizes)
        convolutions = {} if self.image is None else cnn_shapes(self.image)
        return convolutions | mlp_shapes(self.dense_sizes)

    def shared_rows(self, members: int) -> int:
        """Rows that a CPU works through at a time, so that the hidden layers of 2 M networks stay
        in its cache."""
        row_bytes = 2 * members * max(*self.dense_sizes, 16384 if self.image else 0) * 4
        return max(256 if self.image is None else 32, (4 << 20) // row_bytes)


class StackedNetwork:
    """The networks over parameters [G, …] by name, as `Architecture.shapes` lists them."""

    def __init__(self, architecture: Architecture, tensors: dict[str, Tensor]) -> None:
        self.architecture, self.tensors = architecture, tensors
        self.normalized: Normalizing | None = None
        self.convolutions: StackedCNN | None = None
        if architecture.body != "plain":
            make = _NORMALIZING[architecture.body]
            self.normalized = make(architecture.dense_sizes, architecture.activation, tensors)
            return
        layers = [f"layers.{layer}" for layer in range(len(architecture.dense_sizes) - 1)]
        self.dense = StackedMLP(
            tuple(tensors[f"{layer}.weight"] for layer in layers),
            tuple(tensors[f"{layer}.bias"] for layer in layers),
            architecture.activation,
        )
        if architecture.image is not None:
            self.convolutions = StackedCNN(architecture.image, tensors)

    @classmethod
    def of(cls, architecture: Architecture, parameters: StackedParameters) -> StackedNetwork:
        """Networks over `parameters` (which may have others too); gradients flow into them."""
        return cls(architecture, {name: parameters[name] for name in architecture.shapes()})

    def __call__(
        self, observation: Tensor, action: Tensor | None = None, *, by_batch: bool = False
    ) -> Tensor:
        """observation [G, B, obs], action [G, B, A] for a critic -> [G, B, outputs].

        Numbers of an observation beyond the architecture's `inputs` are not seen.

        `by_batch`, of other bodies than the plain one: normalized by the statistics of these rows.
        """
        seen = observation[..., : self.architecture.inputs]
        seen = seen if self.convolutions is None else self.convolutions(seen)
        inputs = seen if action is None else torch.cat([seen, action], -1)
        return (
            self.dense(inputs)
            if self.normalized is None
            else self.normalized(inputs, by_batch=by_batch)
        )

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Weights of the dense layers, [G, in, out] each."""
        return (self.normalized or self.dense).weights

    @property
    def biases(self) -> tuple[Tensor, ...]:
        """Biases of the dense layers, [G, 1, out] each."""
        return self.dense.biases

    def every(self, start: int = 0, step: int = 1) -> StackedNetwork:
        """The networks start, start + step, … as a view without gradients: it follows every change
        of this one."""
        return self.map(lambda tensor: tensor.detach()[start::step])

    def map(self, change: Callable[[Tensor], Tensor]) -> StackedNetwork:
        """The same networks over changed parameters."""
        return StackedNetwork(
            self.architecture, {name: change(tensor) for name, tensor in self.tensors.items()}
        )

    def narrowed(self, inputs: int) -> StackedNetwork:
        """The same networks without the weights of what stands behind the first `inputs` numbers of
        an observation."""
        if inputs == self.architecture.inputs:
            return self
        first = "layers.0.weight"
        tensors = self.tensors | {first: self.tensors[first][:, :inputs]}
        return StackedNetwork(replace(self.architecture, inputs=inputs), tensors)

    def initialize(
        self,
        seeds: Tensor,
        identity: int,
        kind: Literal["orthogonal", "fan_in"],
        last_gain: float = 1.0,
        last_columns: int | None = None,
    ) -> None:
        """Fresh weights from each network's own seed: seeds int64 [G]; `identity` tells an
        algorithm's networks apart.

        orthogonal  gain sqrt(2), `last_gain` for the last layer, of which `last_columns` outputs
                    are used; zero biases
        fan_in      weights and biases evenly within 1 / sqrt(inputs), torch's own default for
                    linear layers

        Other bodies than the plain one have their own, whatever `kind`.
        """
        if self.normalized is not None:
            self.normalized.initialize(seeds, identity)
            return
        last = len(self.weights) - 1
        for name in (
            name.removesuffix(".weight") for name in self.tensors if name.endswith(".weight")
        ):
            weight = self.tensors[f"{name}.weight"].detach()
            bias = self.tensors[f"{name}.bias"].detach()
            # Dense layers keep their numbers whether convolutions stand before them or not.
            layer = int(name.rpartition(".")[2]) + (
                _CONVOLUTIONS if name.startswith("convolutions") else 0
            )
            keys = initialization_keys(seeds, identity, layer)
            # [G, in, out], or [G, out, in, k, k] of a convolution, which is drawn as [G, in * k *
            # k, out].
            dense = weight.dim() == 3
            rows, columns = (
                weight.shape[1:] if dense else (math.prod(weight.shape[2:]), weight.shape[1])
            )
            if kind == "orthogonal":
                if name == f"layers.{last}":
                    used = last_columns or columns
                    drawn = weight.clone()
                    drawn[..., :used] = orthogonal(keys, rows, used, last_gain)
                else:
                    drawn = orthogonal(keys, rows, columns, _HIDDEN_GAIN)
                bias.zero_()
            else:
                drawn, drawn_bias = uniform_fan_in(keys, rows, columns)
                bias.copy_(drawn_bias.view_as(bias))
            weight.copy_(drawn if dense else drawn.transpose(1, 2).reshape(weight.shape))

    def module(self, group: int) -> nn.Module:
        """One of the networks for use with torch alone: [B, obs] -> [B, outputs]."""
        return (
            _NetworkModule(self, group)
            if self.normalized is None
            else self.normalized.module(group)
        )


class _NetworkModule(nn.Module):
    def __init__(self, network: StackedNetwork, group: int) -> None:
        super().__init__()
        architecture = network.architecture
        self._image = architecture.image
        self.convolutions = nn.Sequential()
        if network.convolutions is not None:
            for layer, stride in enumerate(network.convolutions.strides):
                weight = network.tensors[f"convolutions.{layer}.weight"][group].detach()
                convolution = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], stride)
                convolution.weight.data.copy_(weight)
                assert convolution.bias is not None
                convolution.bias.data.copy_(
                    network.tensors[f"convolutions.{layer}.bias"][group].detach()
                )
                self.convolutions.extend([convolution, nn.ReLU()])
        layers: list[nn.Module] = []
        for stacked, bias in zip(network.weights, network.biases, strict=True):
            linear = linear_of(stacked[group].detach(), bias[group].detach().view(-1))
            layers += [linear, ACTIVATIONS[architecture.activation]()]
        self.dense = nn.Sequential(*layers[:-1])

    def forward(self, observation: Tensor) -> Tensor:
        if self._image is not None:
            image = self._image
            if image.channels_last:
                pixels = observation.view(-1, image.height, image.width, image.channels).permute(
                    0, 3, 1, 2
                )
            else:
                pixels = observation.view(-1, image.channels, image.height, image.width)
            observation = self.convolutions(pixels).flatten(1)
        output: Tensor = self.dense(observation)
        return output


def image_shape(space: gymnasium.Space[Any]) -> ImageShape | None:
    """The shape of images in a uint8 Box of three dimensions; None for any other space."""
    if (
        isinstance(space, gymnasium.spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
    ):
        return ImageShape.of(space.shape)
    return None


def actor_inputs(space: gymnasium.Space[Any]) -> int:
    """Numbers in an observation that the actor sees: the first of an `AsymmetricBox`, else all.
    Raises as `observation_size`."""
    size: int = getattr(space, "actor_size", observation_size(space))
    return size


def observation_size(space: gymnasium.Space[Any]) -> int:
    """Numbers in one observation. Raises InvalidInput for a space without a fixed numeric shape."""
    if not isinstance(space, gymnasium.spaces.Box):
        raise InvalidInput(
            f"this network reads Box observations, not {space}",
            reason="UNSUPPORTED_OBSERVATION_SPACE",
        )
    return math.prod(space.shape)
