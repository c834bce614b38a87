"""Agents as every system can show them. All learn by Adam (arXiv:1412.6980, algorithm 1).

Each module `NAME_system` has a class `System(folder, name)`, which has `close()` and, of these, what it offers:

passages()              occasion -> Passage
exploited()             a donor's Snapshot, and the recipient's before its first update
selection(mode)         scores of the agents that were copied, of those that were replaced, and of all
resumed()               Snapshots of the agents of a run that nothing interrupts, and of one that was resumed
agents_around_a_kill()  names of the agents before a worker is killed, and of those that have trained since
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Snapshot(NamedTuple):
    """One agent: its weights and Adam's moments [P] in one order, Adam's steps, how far the system says it is."""

    weights: Tensor
    first_moment: Tensor
    second_moment: Tensor
    updates: int
    counter: int
    epsilon: float = 1e-8

    def equals(self, other: Snapshot) -> bool:
        """Bit for bit, but for the counter."""
        return self.updates == other.updates and all(map(torch.equal, self[:3], other[:3]))


def snapshot_of(parameters: Sequence[Tensor], optimizer: torch.optim.Adam, counter: int) -> Snapshot:
    """A learner of plain torch."""
    states = [optimizer.state.get(each) or {"exp_avg": each * 0, "exp_avg_sq": each * 0} for each in parameters]
    columns = list(parameters), [each["exp_avg"] for each in states], [each["exp_avg_sq"] for each in states]
    flat = (torch.cat([tensor.detach().flatten() for tensor in column]) for column in columns)
    return Snapshot(*flat, int(states[0].get("step", 0)), counter)


class Passage(NamedTuple):
    """The first update of an agent after an occasion, with the learning rate that the system says it has by then, and
    what the update adds to the counter."""

    before: Snapshot
    after: Snapshot
    rate: float
    counted: int

    @property
    def used_rate(self) -> float:
        """From what has moved, so no system has to be believed: |step| = rate * |m / (sqrt(v) + epsilon)|."""
        after = self.after
        assert after.updates == self.before.updates + 1, "it is exactly one update"
        first = after.first_moment.double() / (1 - 0.9**after.updates)
        root = (after.second_moment.double() / (1 - 0.999**after.updates)).sqrt()
        moved = after.weights.double() - self.before.weights.double()
        return float(moved.norm() / (first / (root + after.epsilon)).norm())
