"""The kernels that fit a form, device and machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podracer_core.kernels.ppo import PPOKernels, WidePPOKernels, fits_on_chip, has_kernels
from podracer_core.kernels.rollout import Acts, acts_of, sums_over_time

if TYPE_CHECKING:
    from podracer_core.networks import ActorCritic, PolicyHead
    from podracer_core.optimizers import StackedAdam

__all__ = ["Acts", "acts_of", "kernels_for", "sums_over_time"]


def kernels_for(
    networks: ActorCritic, head: PolicyHead, optimizer: StackedAdam
) -> PPOKernels | None:
    """The kernels for PPO's gradient steps; None where there are none for this form, device or
    machine."""
    architecture = networks.both.architecture
    if not has_kernels(architecture, head, optimizer.parameters.device):
        return None
    return (PPOKernels if fits_on_chip(architecture) else WidePPOKernels)(networks, head, optimizer)
