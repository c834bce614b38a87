"""The rows of a rollout as a policy gradient takes them: all at once, or some at a time in an order
of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from podracer_core.networks import PolicyHead


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows of every member, ready for the loss. B is the number of rows of one member.

    observation   [M, B, obs]      normalized; of images the raw pixels
    action        [M, B, *action]  as the policy sampled it
    action_mask   [M, B, n]        bool, the actions that were allowed; None where all always are
    log_prob      [M, B]           of the action under the proximal policy: the one at the start of
                                   the update
    advantage     [M, B]
    target        [M, B]           of the value, normalized
    value         [M, B]           the critic's at the start of the update, normalized
    weight        [M, B]           0 where a row is not valid, less where an older policy acted
    """

    observation: Tensor
    action: Tensor
    action_mask: Tensor | None
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    weight: Tensor

    def split(self, rows: int) -> list[Minibatch]:
        """Parts of at most `rows` rows."""
        count = self.weight.shape[1]
        if count <= rows:
            return [self]
        return [self._part(slice(start, start + rows)) for start in range(0, count, rows)]

    def _part(self, rows: slice) -> Minibatch:
        columns = (getattr(self, field.name) for field in fields(self))
        return Minibatch(*(None if column is None else column[:, rows] for column in columns))  # type: ignore[arg-type]


class RolloutRows:
    """All rows of a rollout, R = T * E of each member, side by side in one tensor: a new order is a
    single gather.

    observation, action and action_mask are [M, R, _]; numbers are log_prob, advantage, target,
    value and weight, [M, R] each; valid [M, R]. Pixels (uint8) stay what they are, in a tensor of
    their own. `columns` [M, R, _] float32 has all else in this order, and the action mask where
    `masked`."""

    def __init__(
        self,
        head: PolicyHead,
        observation: Tensor,
        action: Tensor,
        action_mask: Tensor | None,
        numbers: list[Tensor],
        valid: Tensor,
    ) -> None:
        self._head = head
        self._pixels = observation if observation.dtype == torch.uint8 else None
        parts = [observation[..., :0].float() if self._pixels is not None else observation, action]
        parts += [action[..., :0] if action_mask is None else action_mask, torch.stack(numbers, -1)]
        self.masked = action_mask is not None
        self._widths = [part.shape[-1] for part in parts]
        # A broken row may hold NaN, which no weight of zero would keep out of the gradient.
        self.columns = torch.where(valid.unsqueeze(-1), torch.cat(parts, -1), 0.0)

    @property
    def count(self) -> int:
        """R."""
        return self.columns.shape[1]

    def minibatches(self, size: int, order: Tensor | None = None) -> list[Minibatch]:
        """Every row once, at most `size` of each member at a time, in the `order` [M, R] of the
        member if given."""
        columns, pixels = self.columns, self._pixels
        if order is not None:
            offset = torch.arange(0, order.numel(), order.shape[1], device=order.device).unsqueeze(
                1
            )
            index = (order + offset).view(-1)
            columns = columns.view(index.shape[0], -1).index_select(0, index).view_as(columns)
            if pixels is not None:
                pixels = pixels.view(index.shape[0], -1).index_select(0, index).view_as(pixels)
        observation, action, mask, numbers = columns.split_with_sizes(self._widths, -1)
        whole = Minibatch(
            observation if pixels is None else pixels,
            action.reshape(*action.shape[:2], *self._head.action_shape).to(self._head.action_dtype),
            mask.bool() if self.masked else None,
            *numbers.permute(2, 0, 1).contiguous(),
        )
        return whole.split(size)
