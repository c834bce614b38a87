"""A member's first state, its own or its parents', and its environments' states, which a checkpoint
keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from podracer_core.algorithms import Algorithm
from podracer_core.collect import Collector
from podracer_core.errors import InvalidInput

MemberGroups = Mapping[str, Mapping[str, Tensor]]
"""group (actor, critic, …) -> name -> tensor: one member's checkpoint."""

ParentKind = Literal["copy", "noise", "fuse"]

# Groups of a checkpoint that are not the algorithm's own; whatever else there is belongs to it.
_BESIDE = ("environment", "replay")
_PERSONAL = ("random", "optimizer")

EnvironmentState = dict[str, Tensor]
"""One member's state: "environment.NAME" and "episodes.NAME" [E, …] of its environments,
"step_count" []."""

RESUMED = "resumed"
_ENVIRONMENT = "environment."


def resume(algorithm: Algorithm, member: int, checkpoint: MemberGroups) -> None:
    """Continue from the agent's own checkpoint: weights, optimizer, statistics and random
    streams."""
    algorithm.load_member_state(member, _own_groups(checkpoint))


def inherit(
    algorithm: Algorithm,
    member: int,
    kind: ParentKind,
    parents: Sequence[tuple[MemberGroups, float]],
    *,
    keep_optimizer: bool,
    noise_scale: float = 0.0,
    noise_seed: int = 0,
) -> None:
    """Start from parents' checkpoints, each with its weight: one to copy (with noise or without),
    several to fuse.

    Other learned values, such as a temperature, are inherited too. Hyperparameters and random
    streams stay the member's own. Raises InvalidInput for a wrong number of parents, and for
    parents of other network sizes."""
    if len(parents) < 2 if kind == "fuse" else len(parents) != 1:
        raise InvalidInput(
            f"to {kind} takes {'two parents or more' if kind == 'fuse' else 'one parent'}"
        )
    left_out = [group for group in _PERSONAL if not (keep_optimizer and group == "optimizer")]
    states = [
        {
            group: tensors
            for group, tensors in _own_groups(checkpoint).items()
            if group not in left_out
        }
        for checkpoint, _ in parents
    ]
    if kind != "fuse":
        algorithm.load_member_state(member, states[0])
    else:
        weights = [weight for _, weight in parents]
        algorithm.load_member_state(
            member, _weighted_mean(states, weights if any(weights) else [1.0] * len(states))
        )
    if kind == "noise":
        algorithm.perturb_member(member, noise_scale, noise_seed)


def _own_groups(checkpoint: MemberGroups) -> dict[str, Mapping[str, Tensor]]:
    return {
        group: tensors
        for group, tensors in checkpoint.items()
        if group.partition("/")[0] not in _BESIDE
    }


def _weighted_mean(
    states: Sequence[MemberGroups], weights: Sequence[float]
) -> dict[str, dict[str, Tensor]]:
    """The weighted mean of every tensor, in float64."""
    share = torch.tensor(weights, dtype=torch.float64)
    share /= share.sum()
    fused: dict[str, dict[str, Tensor]] = {}
    for group, tensors in states[0].items():
        fused[group] = {}
        for name, model in tensors.items():
            if any(
                name not in state.get(group, {}) or state[group][name].shape != model.shape
                for state in states
            ):
                raise InvalidInput(
                    f"the parents' {group} {name} are not of one shape; they cannot be fused"
                )
            stacked = torch.stack([state[group][name].double() for state in states])
            fused[group][name] = torch.tensordot(share, stacked, 1).to(model.dtype)
    return fused


def member_environment_states(collector: Collector) -> list[EnvironmentState]:
    """Cut a collector's state into its members'."""
    members = collector.members
    stacked = {
        name: _by_member(name, tensor, members) for name, tensor in collector.state().items()
    }
    return [{name: tensor[member] for name, tensor in stacked.items()} for member in range(members)]


def resume_environments(
    collector: Collector, states: Sequence[EnvironmentState | None]
) -> list[bool]:
    """Load the `states` [M] of members' environments; members without a state begin new episodes.

    A state that does not fit (another number of environments, another environment) is ignored too.
    Returns for each member whether it was loaded. Raises InvalidInput for another number of
    members."""
    if len(states) != collector.members:
        raise InvalidInput(
            f"states of {len(states)} members came for {collector.members}", reason="BAD_TENSOR"
        )
    own = collector.state()
    merged = {name: tensor.clone() for name, tensor in own.items()}
    resumed = []
    for member, state in enumerate(states):
        rows = {
            name: _by_member(name, tensor, collector.members)[member]
            for name, tensor in merged.items()
        }
        fits = state is not None and _shapes(rows) == _shapes(state)
        if state is not None and fits:
            for name, row in rows.items():
                row.copy_(state[name])
        resumed.append(fits)
    if any(resumed):
        collector.load_state(merged)
    return resumed


def stack_states(
    states: Sequence[EnvironmentState | None], first: int, count: int
) -> dict[str, Tensor]:
    """Members' states for a message: [M, …] by name, of `count` environments from `first`; which
    members have one."""
    present = [state for state in states if state is not None]
    if not present or any(_shapes(state) != _shapes(present[0]) for state in present):
        return {}
    stacked = {RESUMED: torch.tensor([state is not None for state in states])}
    for name, model in present[0].items():
        rows = [state[name] if state is not None else torch.zeros_like(model) for state in states]
        tensor = torch.stack(rows)
        stacked[name] = (
            tensor[:, first : first + count].contiguous() if tensor.dim() > 1 else tensor
        )
    return stacked


def unstack_states(stacked: Mapping[str, Tensor]) -> list[EnvironmentState | None]:
    """The inverse of `stack_states` for the same environments. Raises InvalidInput for anything
    else."""
    resumed = stacked.get(RESUMED)
    if resumed is None or resumed.dtype != torch.bool or resumed.dim() != 1:
        raise InvalidInput(
            f"states of environments come with {RESUMED!r}, bool [M]", reason="BAD_TENSOR"
        )
    names = [name for name in stacked if name != RESUMED]
    for name in names:
        if stacked[name].shape[:1] != resumed.shape:
            shape = list(stacked[name].shape)
            raise InvalidInput(
                f"{name!r} of {len(resumed)} members has shape {shape}", reason="BAD_TENSOR"
            )
    return [
        {name: stacked[name][member] for name in names} if present else None
        for member, present in enumerate(resumed.tolist())
    ]


def _by_member(name: str, tensor: Tensor, members: int) -> Tensor:
    """A view [M, …]: the environments' own tensors come as [N, …]."""
    return tensor.view(members, -1, *tensor.shape[1:]) if name.startswith(_ENVIRONMENT) else tensor


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
