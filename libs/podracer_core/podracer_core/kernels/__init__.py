"""Kernels for GPUs, written in Triton, which comes with torch there, or made by torch's
compiler."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.kernels.ppo import (
        LOSS_ROWS, WidePPOKernels, choices_of, kernels_for, launch_form,
    )
    from podracer_core.kernels.ppo_step import gradient_kernel, loss_kernel
    from podracer_core.kernels.rollout import acts_of, sums_over_time
    from podracer_core.kernels.rollout_step import act_kernel
else:
    __all__, __getattr__ = exports(__name__)
