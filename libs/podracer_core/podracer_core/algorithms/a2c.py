"""Advantage Actor-Critic of M agents at once: docs/algorithms/a2c.md has the equations and all
deviations."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from podracer_core.algorithms.on_policy import OnPolicy
from podracer_core.algorithms.preparation import Minibatch, RolloutRows
from podracer_core.catalogue import find_algorithm


class A2C(OnPolicy):
    """One step along the policy gradient on each rollout (Mnih et al., 2016, arXiv:1602.01783,
    synchronous); see `OnPolicy` for its frame."""

    info = find_algorithm("a2c")
    graph_safe = True

    def _minibatches(self, rows: RolloutRows) -> Iterator[Minibatch]:
        yield from rows.minibatches(rows.count)

    def _policy_loss(
        self, log_prob: Tensor, minibatch: Minibatch
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        # The paper's section 4: d/dtheta log pi(a | s) * A, climbed.
        return -log_prob * minibatch.advantage, -minibatch.advantage, ()
