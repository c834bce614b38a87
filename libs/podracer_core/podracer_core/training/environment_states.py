"""Environments' states by member: what a checkpoint keeps, so that any cohort can go on where its members stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from podracer_core.collect import Collector
from podracer_core.errors import InvalidInput

EnvironmentState = dict[str, Tensor]
"""One member's: "environment.NAME" and "episodes.NAME" [E, …] of its environments, "step_count" []."""

RESUMED = "resumed"
_ENVIRONMENT = "environment."


def member_environment_states(collector: Collector) -> list[EnvironmentState]:
    """Cut a collector's state into its members'."""
    members = collector.members
    stacked = {name: _by_member(name, tensor, members) for name, tensor in collector.state().items()}
    return [{name: tensor[member] for name, tensor in stacked.items()} for member in range(members)]


def resume_environments(collector: Collector, states: Sequence[EnvironmentState | None]) -> list[bool]:
    """Put members' environments where `states` [M] say; the others stay as they were reset.

    A state that does not fit (another number of environments, another environment) is left out too: such episodes
    start anew. Returns for each member whether it goes on. Raises InvalidInput for another number of members.
    """
    if len(states) != collector.members:
        raise InvalidInput(f"states of {len(states)} members came for {collector.members}", reason="BAD_TENSOR")
    own = collector.state()
    merged = {name: tensor.clone() for name, tensor in own.items()}
    resumed = []
    for member, state in enumerate(states):
        rows = {name: _by_member(name, tensor, collector.members)[member] for name, tensor in merged.items()}
        fits = state is not None and _shapes(rows) == _shapes(state)
        if state is not None and fits:
            for name, row in rows.items():
                row.copy_(state[name])
        resumed.append(fits)
    if any(resumed):
        collector.load_state(merged)
    return resumed


def stack_states(states: Sequence[EnvironmentState | None], first: int, count: int) -> dict[str, Tensor]:
    """For a wire: [M, …] by name, of `count` environments from `first` on, and which members have a state at all."""
    present = [state for state in states if state is not None]
    if not present or any(_shapes(state) != _shapes(present[0]) for state in present):
        return {}
    stacked = {RESUMED: torch.tensor([state is not None for state in states])}
    for name, model in present[0].items():
        rows = [state[name] if state is not None else torch.zeros_like(model) for state in states]
        tensor = torch.stack(rows)
        stacked[name] = tensor[:, first : first + count].contiguous() if tensor.dim() > 1 else tensor
    return stacked


def unstack_states(stacked: Mapping[str, Tensor]) -> list[EnvironmentState | None]:
    """The inverse of `stack_states` for the environments that it was given. Raises InvalidInput for anything else."""
    resumed = stacked.get(RESUMED)
    if resumed is None or resumed.dtype != torch.bool or resumed.dim() != 1:
        raise InvalidInput(f"states of environments come with {RESUMED!r}, bool [M]", reason="BAD_TENSOR")
    names = [name for name in stacked if name != RESUMED]
    for name in names:
        if stacked[name].shape[:1] != resumed.shape:
            shape = list(stacked[name].shape)
            raise InvalidInput(f"{name!r} of {len(resumed)} members has shape {shape}", reason="BAD_TENSOR")
    return [
        {name: stacked[name][member] for name in names} if present else None
        for member, present in enumerate(resumed.tolist())
    ]


def _by_member(name: str, tensor: Tensor, members: int) -> Tensor:
    """A view [M, …]: the environments' own tensors come as [N, …]."""
    return tensor.view(members, -1, *tensor.shape[1:]) if name.startswith(_ENVIRONMENT) else tensor


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
