"""A member's transitions cut into parts that stay as they are while more is stored.

Each part holds the rows of one stretch of everything that the member has ever stored: part 7 always
begins at the same step. So of two snapshots, one soon after the other, most parts are the same
bytes, and need to be stored only once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput

PART_BYTES = 4 << 20
"""Approximate bytes of the observations and actions in one part."""

_ROWS = ("observation", "action", "reward", "terminated", "truncated", "valid", "cut_off")
_FIRST_ROW, _FINALS, _NEWEST = "first_row", "final_rows", "newest_observation"


def to_parts(
    state: Mapping[str, Tensor], part_bytes: int = PART_BYTES
) -> dict[str, dict[str, Tensor]]:
    """`Replay.member_state` as groups of tensors: `7`, `8`, … with rows, `tail` with the tensors
    that always change."""
    first, rows = int(state[_FIRST_ROW]), state["reward"].shape[0]
    tail = {name: tensor for name, tensor in state.items() if name not in (*_ROWS, _FINALS)}
    tail[_NEWEST] = state["observation"][rows:]
    parts = {"tail": tail}
    size = max(
        1, part_bytes // max(1, state["observation"][-1].nbytes + state["action"][:1].nbytes)
    )
    finals = state["cut_off"].flatten(1).sum(1).cumsum(0).tolist()
    for number in range(first // size, -(-(first + rows) // size)):
        begin, end = (min(max(row * size - first, 0), rows) for row in (number, number + 1))
        parts[str(number)] = {name: state[name][begin:end] for name in _ROWS}
        parts[str(number)][_FINALS] = state[_FINALS][
            finals[begin - 1] if begin else 0 : finals[end - 1]
        ]
    return parts


def from_parts(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The inverse of `to_parts`, for parts in any order. Raises InvalidInput where one is
    missing."""
    numbers = sorted(int(name) for name in parts if name.isdecimal())
    if "tail" not in parts or numbers != list(
        range(numbers[0], numbers[0] + len(numbers)) if numbers else ()
    ):
        raise InvalidInput(
            f"transitions are stored as a tail and parts without a gap; got {sorted(parts)}"
        )
    tail = dict(parts["tail"])
    newest = tail.pop(_NEWEST)
    if not numbers:
        raise InvalidInput("transitions without a single row")
    state = {
        name: torch.cat([parts[str(number)][name] for number in numbers])
        for name in (*_ROWS, _FINALS)
    }
    state["observation"] = torch.cat([state["observation"], newest])
    return tail | state
