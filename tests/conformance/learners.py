"""Agents as every system can show them. All learn by Adam (arXiv:1412.6980, algorithm 1).

Each module `NAME_system` has a class `System(folder)`, which has `close()` and of these what it
offers:

passages()              occasion -> Passage; "exploit" leads from the donor to its copy
donors()                Snapshots of a donor, and of the same agent after a copy of it has trained
selection()             scores of the agents that were copied, of those that were replaced, and of
                        all
resumed()               Snapshots of the agents of a run that nothing interrupts, and of one that
                        was resumed
agents_around_a_kill()  names of the agents before a worker is killed, and of those that have
                        trained since
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Snapshot(NamedTuple):
    """One agent: its weights and Adam's moments [P] in one order, Adam's steps, how far the system
    says it is."""

    weights: Tensor
    first_moment: Tensor
    second_moment: Tensor
    updates: int
    counter: int
    epsilon: float = 1e-8

    def equals(self, other: Snapshot) -> bool:
        """Bit for bit, but for the counter."""
        return self.updates == other.updates and all(map(torch.equal, self[:3], other[:3]))


def snapshot_of(
    parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, counter: int
) -> Snapshot:
    """A learner of plain torch."""
    states = [
        optimizer.state.get(each) or {"exp_avg": each * 0, "exp_avg_sq": each * 0}
        for each in parameters
    ]
    columns = (
        parameters,
        [each["exp_avg"] for each in states],
        [each["exp_avg_sq"] for each in states],
    )
    flat = (torch.cat([tensor.detach().flatten() for tensor in column]) for column in columns)
    return Snapshot(*flat, int(states[0].get("step", 0)), counter)


class Passage(NamedTuple):
    """The first update of an agent after an occasion, with the learning rate that the system says
    it has by then, and what the update adds to the counter. No system is believed: the rest is
    calculated from the tensors."""

    before: Snapshot
    after: Snapshot
    rate: float
    counted: int

    @property
    def step(self) -> Tensor:
        """Adam's step for a rate of 1, from the moments after it."""
        first = self.after.first_moment.double() / (1 - 0.9**self.after.updates)
        second = self.after.second_moment.double() / (1 - 0.999**self.after.updates)
        return -first / (second.sqrt() + self.after.epsilon)

    @property
    def moved(self) -> Tensor:
        return self.after.weights.double() - self.before.weights.double()

    @property
    def used_rate(self) -> float:
        return float(self.moved.norm() / self.step.norm())

    def is_one_update(self) -> bool:
        """One gradient leads from both moments before to both after, and the weights moved along
        the step."""
        (_, first, second, updates, *_), after = self.before, self.after
        gradient = (after.first_moment - 0.9 * first) / 0.1
        explained = torch.allclose(
            after.second_moment, 0.999 * second + 0.001 * gradient**2, rtol=1e-3, atol=0
        )
        along = torch.allclose(self.moved, self.used_rate * self.step, rtol=1e-2, atol=1e-6)
        return explained and along and after.updates == updates + 1
