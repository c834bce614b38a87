"""Contributions in, the state to go on from out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput, PodracerError
from podracer_core.fusion.fusion import Fusion, Parameters, Stack
from podracer_core.fusion.state import Contribution, FusionState, column, pooled


@torch.no_grad()
def fuse(fusion: Fusion, state: FusionState, contributions: Sequence[Contribution]) -> FusionState:
    """What comes of `state`, from which all contributions began, and of these. Their order does not matter.

    A learner's member counts where it is active and all that it brings is finite; where it does not count, neither its
    parameters nor its statistics are in the result. A member that counts nowhere keeps what it had, and is not active;
    one that counts somewhere is, also for learners where it had diverged. So is it where the fusion itself gives what
    is not finite. Transitions count in any case: they have been taken.

    Raises InvalidInput for contributions of another cohort, and for a fusion that raises, or returns something else
    than the parameters it was given.
    """
    ordered = sorted(contributions, key=lambda contribution: contribution.rank)
    for contribution in ordered:
        state.require_like(contribution.growth)
    counted = torch.stack([_counts(contribution.growth) for contribution in ordered])
    previous = {name: tensor.double() for name, tensor in state.parameters.items()}
    stack = Stack(
        tuple(contribution.rank for contribution in ordered),
        tuple(contribution.samples for contribution in ordered),
        counted,
        {name: _stacked(name, before, ordered, counted) for name, before in previous.items()},
    )
    fused = _rounded(_asked(fusion, previous, stack), state.parameters)
    sound = counted.any(0)
    for tensor in fused.values():
        sound = sound & _finite(tensor)
    return FusionState(
        {name: torch.where(column(sound, old), fused[name], old) for name, old in state.parameters.items()},
        {
            name: pooled(
                [before, *(ordered[k].growth.statistics[name].where(counted[k] & sound) for k in range(len(ordered)))]
            )
            for name, before in state.statistics.items()
        },
        state.transitions + torch.stack([contribution.growth.transitions for contribution in ordered]).sum(0),
        sound,
    )


def _asked(fusion: Fusion, previous: Parameters, stack: Stack) -> Parameters:
    try:
        return fusion.fuse(previous, stack)
    except PodracerError:
        raise
    except Exception as error:  # what an installed package does is not ours to foresee
        message = f"fusion {type(fusion).__name__} raised {type(error).__name__}: {error}"
        raise InvalidInput(message, reason="BROKEN_FUSION") from error


def _counts(growth: FusionState) -> Tensor:
    """bool [M]."""
    sound = growth.active.clone()
    for tensor in growth.parameters.values():
        sound &= _finite(tensor)
    for moments in growth.statistics.values():
        sound &= moments.finite
    return sound


def _finite(tensor: Tensor) -> Tensor:
    """bool [M] of [M, …]."""
    return tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else tensor.isfinite()


def _stacked(name: str, previous: Tensor, contributions: Sequence[Contribution], counted: Tensor) -> Tensor:
    parts = [contribution.growth.parameters[name].double() for contribution in contributions]
    # Never by multiplication: a diverged member's NaN must not touch the others.
    return torch.stack([torch.where(column(counted[k], part), part, previous) for k, part in enumerate(parts)])


def _rounded(fused: Parameters, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the dtypes of the networks. Raises InvalidInput for other names or shapes."""
    own = {name: list(tensor.shape) for name, tensor in model.items()}
    given = {name: list(tensor.shape) for name, tensor in fused.items()}
    differing = sorted(name for name in {*own, *given} if own.get(name) != given.get(name))
    if differing:
        name = differing[0]
        raise InvalidInput(
            f"the fusion returned {name} of shape {given.get(name, 'none')}, expected {own.get(name, 'none')}",
            reason="BROKEN_FUSION",
        )
    return {name: fused[name].to(tensor.dtype) for name, tensor in model.items()}
