"""Optimizers over the member axis."""

from podracer_core.optimizers.stacked_adam import StackedAdam, clip_gradient_

__all__ = ["StackedAdam", "clip_gradient_"]
