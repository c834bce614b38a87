"""Kernels for GPUs, written in Triton, which comes with torch there."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from podracer_core.kernels.compiler import missing

if TYPE_CHECKING:
    from podracer_core.kernels.ppo import PPOKernels
    from podracer_core.networks import PolicyHead
    from podracer_core.networks.stacked_network import Architecture
    from podracer_core.optimizers import StackedAdam

__all__ = ["kernels_for"]

logger = logging.getLogger(__name__)


@functools.cache
def _warn(lacks: str) -> None:
    logger.warning("gradient steps on the GPU are slower than they could be: there is no %s", lacks)


def kernels_for(architecture: Architecture, head: PolicyHead, optimizer: StackedAdam) -> PPOKernels | None:
    """The kernels for PPO's gradient steps; None where there are none for this form, device or machine."""
    from podracer_core.kernels.ppo import PPOKernels, covers

    if not covers(architecture, head, optimizer.parameters.device):
        return None
    if lacks := missing():
        _warn(lacks)
        return None
    return PPOKernels(architecture, head, optimizer)
