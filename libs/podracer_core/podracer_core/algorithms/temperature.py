"""The weight of the entropy, learned so that the policy keeps a given entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.optimizers import StackedAdam


class Temperature:
    """alpha [M] of Haarnoja et al., 2018 (arXiv:1812.05905), equation 18: J(alpha) = E[-alpha (log pi + target)].

    Its logarithm is what Adam moves, so it stays above zero; J's derivative in log alpha is taken with alpha = 1 in
    front, as in the authors' code: the step does not shrink with alpha.

    log      float32 [M, 1], of what is learned
    learns   otherwise alpha is `initial`, also when that is changed
    """

    def __init__(self, initial: Tensor, *, learns: bool) -> None:
        self.learns, self._initial = learns, initial
        self.log = initial.log().unsqueeze(1)
        self._gradient = torch.zeros_like(self.log)
        self.optimizer = StackedAdam(self.log, self._gradient, epsilon=1e-8)

    @property
    def value(self) -> Tensor:
        """alpha, [M]."""
        return self.log[:, 0].exp() if self.learns else self._initial

    def update(self, entropy: Tensor, target: Tensor, learning_rate: Tensor, active: Tensor) -> None:
        """One step: up where the policy's entropy [M] is below `target` [M], down where it is above."""
        if self.learns:
            self._gradient[:, 0] = entropy - target
            self.optimizer.step(learning_rate, active & entropy.isfinite())
