"""Kernels for GPUs, written in Triton, which comes with torch there."""

from __future__ import annotations

import functools
import importlib.util
import logging
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podracer_core.kernels.ppo import PPOKernels
    from podracer_core.networks import PolicyHead
    from podracer_core.networks.stacked_network import Architecture
    from podracer_core.optimizers import StackedAdam

__all__ = ["kernels_for", "missing"]

logger = logging.getLogger(__name__)


def missing() -> str:
    """What this machine lacks to compile kernels; empty where nothing is missing."""
    if importlib.util.find_spec("triton") is None:
        return "triton, which comes with the builds of torch for CUDA"
    return "" if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") else "a C compiler (gcc)"


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
