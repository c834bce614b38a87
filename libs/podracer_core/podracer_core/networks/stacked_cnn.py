"""The convolutions of Mnih et al., 2015 (Nature 518), for G networks at once: one group of channels
a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput

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
