"""A member's first state: its own checkpoint, or its parents'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.errors import InvalidInput

MemberGroups = Mapping[str, Mapping[str, Tensor]]
"""group (actor, critic, …) -> name -> tensor: one member's checkpoint."""

ParentKind = Literal["copy", "noise", "fuse"]

# Groups of a checkpoint that are not the algorithm's own; whatever else there is belongs to it.
_BESIDE = ("environment", "replay")
_PERSONAL = ("random", "optimizer")


def resume(algorithm: Algorithm, member: int, checkpoint: MemberGroups) -> None:
    """Go on from the agent's own checkpoint: weights, optimizer, statistics and random streams."""
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
    """Start from parents' checkpoints, each with its weight: one to copy (with noise or without), several to fuse.

    What the algorithm has learned besides (a temperature) comes along.
    Hyperparameters and random streams stay the member's own. Raises InvalidInput for a wrong number of parents, and for
    parents of other network sizes.
    """
    if len(parents) < 2 if kind == "fuse" else len(parents) != 1:
        raise InvalidInput(f"to {kind} takes {'two parents or more' if kind == 'fuse' else 'one parent'}")
    left_out = [group for group in _PERSONAL if not (keep_optimizer and group == "optimizer")]
    states = [
        {group: tensors for group, tensors in _own_groups(checkpoint).items() if group not in left_out}
        for checkpoint, _ in parents
    ]
    if kind != "fuse":
        algorithm.load_member_state(member, states[0])
    else:
        weights = [weight for _, weight in parents]
        algorithm.load_member_state(member, _weighted_mean(states, weights if any(weights) else [1.0] * len(states)))
    if kind == "noise":
        algorithm.perturb_member(member, noise_scale, noise_seed)


def _own_groups(checkpoint: MemberGroups) -> dict[str, Mapping[str, Tensor]]:
    return {group: tensors for group, tensors in checkpoint.items() if group.partition("/")[0] not in _BESIDE}


def _weighted_mean(states: Sequence[MemberGroups], weights: Sequence[float]) -> dict[str, dict[str, Tensor]]:
    """Of every tensor, in float64."""
    share = torch.tensor(weights, dtype=torch.float64)
    share /= share.sum()
    fused: dict[str, dict[str, Tensor]] = {}
    for group, tensors in states[0].items():
        fused[group] = {}
        for name, model in tensors.items():
            if any(name not in state.get(group, {}) or state[group][name].shape != model.shape for state in states):
                raise InvalidInput(f"the parents' {group} {name} are not of one shape; they cannot be fused")
            stacked = torch.stack([state[group][name].double() for state in states])
            fused[group][name] = torch.tensordot(share, stacked, 1).to(model.dtype)
    return fused
