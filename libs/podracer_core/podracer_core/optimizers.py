"""Adam with a learning rate and a step count for every member; `torch.optim` shares them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999
# Parameters of a member from which on a CPU does better to go through them once than to do all
# members at once.
_FUSED_SIZE = 1 << 15


class StackedAdam:
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1) over `parameters` [M, P] and
    `gradient` [M, P].

    beta1   of the first moment; to be changed before the first step only

    Moments are [M, P], steps [M] float64 (whole numbers). A member that is not active in a step
    keeps its parameters, moments and step exactly, whatever its gradient holds."""

    def __init__(self, parameters: Tensor, gradient: Tensor, *, epsilon: float = 1e-5) -> None:
        self.parameters, self.gradient, self.epsilon = parameters, gradient, epsilon
        self.beta1 = BETA1
        self.first_moment = torch.zeros_like(parameters)
        self.second_moment = torch.zeros_like(parameters)
        self.step_count = torch.zeros(
            parameters.shape[0], dtype=torch.float64, device=parameters.device
        )

    @functools.cached_property
    def _rows(self) -> list[list[list[Tensor]]]:
        """Tensors that a member's step reads and changes, as views."""
        every = (self.parameters, self.gradient, self.first_moment, self.second_moment)
        return [[[tensor[member]] for tensor in every] for member in range(len(self.step_count))]

    @torch.no_grad()
    def step(self, learning_rate: Tensor, active: Tensor) -> None:
        """One update. learning_rate [M], active [M] bool."""
        if self.parameters.device.type == "cpu" and self.parameters.shape[1] >= _FUSED_SIZE:
            self._step_fused(learning_rate, active)
            return
        step_count = self.step_count + 1.0
        first_moment = torch.lerp(self.first_moment, self.gradient, 1.0 - self.beta1)
        second_moment = torch.mul(self.second_moment, BETA2).addcmul_(
            self.gradient, self.gradient, value=1.0 - BETA2
        )
        # Bias corrections in float64, as torch.optim calculates them.
        rate = (-learning_rate.double() / (1.0 - self.beta1**step_count)).float()[:, None]
        root = (1.0 - BETA2**step_count).rsqrt().float()[:, None]
        denominator = second_moment.sqrt().mul_(root).add_(self.epsilon)
        parameters = torch.div(first_moment, denominator).mul_(rate).add_(self.parameters)
        column = active[:, None]
        # torch.where, not a factor of zero: 0 * NaN is NaN.
        torch.where(column, parameters, self.parameters, out=self.parameters)
        torch.where(column, first_moment, self.first_moment, out=self.first_moment)
        torch.where(column, second_moment, self.second_moment, out=self.second_moment)
        torch.where(active, step_count, self.step_count, out=self.step_count)

    def _step_fused(self, learning_rate: Tensor, active: Tensor) -> None:
        """The same, member by member in one pass over the memory: what large networks on a CPU wait
        for."""
        counts = (self.step_count + 1.0).float()  # exact up to 2^24 steps, which no agent takes
        for member, is_active in enumerate(active.tolist()):
            if not is_active:
                continue
            parameters, gradient, first_moment, second_moment = self._rows[member]
            torch._fused_adam_(
                parameters,
                gradient,
                first_moment,
                second_moment,
                [],
                [counts[member]],
                lr=learning_rate[member],
                beta1=self.beta1,
                beta2=BETA2,
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
            )
        self.step_count += active

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's moments [P] and step count []."""
        return {
            name: getattr(self, name)[member].clone()
            for name in ("first_moment", "second_moment", "step_count")
        }

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave."""
        for name in ("first_moment", "second_moment", "step_count"):
            getattr(self, name)[member].copy_(state[name])


def clip_gradient_(gradient: Tensor, max_norm: Tensor) -> Tensor:
    """Scale every member's row of `gradient` [M, P] down to at most max_norm [M]; returns the norms
    before, [M]."""
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
    gradient.mul_((max_norm / norm.clamp(min=1e-6)).clamp(max=1.0)[:, None])
    return norm
