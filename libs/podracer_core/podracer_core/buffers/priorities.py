"""Priorities of many transitions, drawn from in proportion, without a loop over them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_FAN_OUT = 64


class PriorityTree:
    """M trees of sums with 64 children a node: three levels for a quarter of a million leaves.

    Every sum is calculated anew from its children, so rounding errors do not gather.
    """

    def __init__(self, members: int, leaves: int, device: torch.device | str = "cpu") -> None:
        # levels[0] are the leaves, the last level is at most 64 wide; each padded to whole nodes.
        self._levels: list[Tensor] = []
        width = leaves
        while True:
            width = -(-width // _FAN_OUT) * _FAN_OUT
            self._levels.append(torch.zeros(members, width, device=device))
            if width <= _FAN_OUT:
                break
            width //= _FAN_OUT
        self._children = torch.arange(_FAN_OUT, device=device)
        self._member = torch.arange(members, device=device).unsqueeze(1)
        self._greatest = torch.ones(members, 1, device=device)  # ever set: what new leaves get

    def set(self, leaf: Tensor, priority: Tensor) -> None:
        """leaf int64 [M, B], priority [M, B] of at least zero. Of a leaf given twice the greater
        one counts."""
        torch.maximum(self._greatest, priority.amax(1, keepdim=True), out=self._greatest)
        self._write(leaf, priority)

    def set_newest(self, leaf: Tensor, valid: Tensor) -> None:
        """Leaves int64 [B], the same of every member, get the greatest priority so far, or none
        where not `valid` [M, B]."""
        self._write(
            leaf.expand(self._levels[0].shape[0], -1), torch.where(valid, self._greatest, 0.0)
        )

    def clear(self, leaf: Tensor, kept: Tensor | float = 0.0) -> None:
        """Leaves int64 [B] of every member are not drawn any more, but for those that are `kept`
        [M, B]."""
        self._write(leaf.expand(self._levels[0].shape[0], -1), self._levels[0][:, leaf] * kept)

    def member_state(self, member: int, leaf: Tensor) -> dict[str, Tensor]:
        """Copies of the priorities of `leaf` int64 [B], and of the greatest that the member ever
        had, []."""
        return {
            "priority": self._levels[0][member, leaf],
            "greatest_priority": self._greatest[member, 0].clone(),
        }

    def load_member_state(self, member: int, leaf: Tensor, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member's `leaf` int64 [B] with what `member_state` gave for as many, or
        with 1."""
        priority = state.get("priority", torch.ones_like(leaf, dtype=torch.float32)).to(leaf.device)
        self._greatest[member] = state.get("greatest_priority", self._greatest[member, 0])
        everyone = self._levels[0][:, leaf]
        everyone[member] = priority
        self._write(leaf.expand_as(everyone), everyone)

    def find(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """part [M, B] in [0, 1) of the whole sum -> the leaf there, int64 [M, B], and its
        probability [M, B]."""
        total = self._levels[-1].sum(1, keepdim=True)
        remaining = part * total
        node = torch.zeros_like(part, dtype=torch.int64)
        for level in reversed(self._levels):
            sums = self._of(level, node)  # [M, B, 64]
            cumulative = sums.cumsum(-1)
            # The first child whose running sum exceeds what remains, and never one of nothing after
            # the last.
            last = (sums > 0).mul(self._children).amax(-1)
            child = (cumulative <= remaining.unsqueeze(-1)).sum(-1).minimum(last)
            before = cumulative.gather(-1, child.unsqueeze(-1)).squeeze(-1)
            own = sums.gather(-1, child.unsqueeze(-1)).squeeze(-1)
            remaining = (remaining - (before - own)).clamp(min=0.0)
            node = node * _FAN_OUT + child
        return node, own / total.clamp(min=1e-30)

    @staticmethod
    def size_bytes(members: int, leaves: int) -> int:
        """About what a tree takes."""
        return members * leaves * 4 * (_FAN_OUT + 1) // _FAN_OUT

    def _write(self, leaf: Tensor, priority: Tensor) -> None:
        # A plain scatter would leave it to a GPU's order which of two priorities of one leaf is
        # kept.
        self._levels[0].scatter_reduce_(1, leaf, priority, "amax", include_self=False)
        node = leaf
        for below, above in zip(self._levels[:-1], self._levels[1:], strict=True):
            node = node.div(_FAN_OUT, rounding_mode="floor")
            above.scatter_(1, node, self._of(below, node).sum(-1))

    def _of(self, level: Tensor, node: Tensor) -> Tensor:
        """The children [M, B, 64] of nodes [M, B]."""
        # [M * nodes, 64]: whole rows are copied faster than their numbers one by one
        rows = level.view(-1, _FAN_OUT)
        row = node + self._member * (level.shape[1] // _FAN_OUT)
        return rows.index_select(0, row.flatten()).view(*node.shape, _FAN_OUT)
