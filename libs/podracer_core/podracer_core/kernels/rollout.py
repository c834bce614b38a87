"""Acting and sums over time, by the kernels of `rollout_step` where there are kernels, as operators
of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from podracer_core.device import can_compile
from podracer_core.kernels.ppo import (
    ACTIVATIONS,
    chip_of,
    choices_of,
    fits_on_chip,
    has_kernels,
    is_interpreted,
    launch_form,
)
from podracer_core.networks import Actor, NetworkActor

_BLOCK = 128


Acts = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor], None]
"""From observation, noise and action mask, as `Actor.act` takes them, into action and
log-probability."""


def acts_of(actor: Actor) -> Acts:
    """What writes an action of the actor as it is then."""
    if (
        isinstance(actor, NetworkActor)
        and len(actor.network.weights[0]) == actor.members  # no ensemble
        and has_kernels(actor.network.architecture, actor.head, actor.device)
        and fits_on_chip(actor.network.architecture)
    ):
        return partial(_act_by_kernel, actor)
    return partial(_act_as_it_is, actor)


def _act_as_it_is(
    actor: Actor,
    observation: Tensor,
    noise: Tensor,
    action_mask: Tensor | None,
    action: Tensor,
    log_prob: Tensor,
) -> None:
    for into, value in zip(
        (action, log_prob), actor.act(observation, noise, action_mask), strict=True
    ):
        into.copy_(value)


def _act_by_kernel(
    actor: NetworkActor,
    observation: Tensor,
    noise: Tensor,
    action_mask: Tensor | None,
    action: Tensor,
    log_prob: Tensor,
) -> None:
    network, architecture = actor.network, actor.network.architecture
    torch.ops.podracer.act(
        observation.flatten(2), actor.mean, actor.scale, noise,
        noise if action_mask is None else action_mask, list(network.weights), list(network.biases),
        actor.settings.get("log_std", noise), action, log_prob, list(architecture.dense_sizes),
        choices_of(actor.head), action_mask is not None, ACTIVATIONS[architecture.activation],
        math.inf if actor.limit is None else actor.limit,
    )  # fmt: skip


def sums_over_time(terms: Tensor, decay: Tensor, start: Tensor, *, reverse: bool = False) -> Tensor:
    """sums[t] = terms[t] + decay[t] * sums[t - 1]; with `reverse` of t + 1. terms, decay [T, …],
    start […] float32."""
    if terms.is_cuda:
        return torch.ops.podracer.sums_over_time(terms, decay, start, reverse)  # type: ignore[no-any-return]
    return _sums_step_by_step(terms, decay, start, reverse)


def _sums_step_by_step(terms: Tensor, decay: Tensor, start: Tensor, reverse: bool) -> Tensor:
    sums, present = torch.empty_like(terms), start
    for step in range(terms.shape[0] - 1, -1, -1) if reverse else range(terms.shape[0]):
        present = torch.addcmul(terms[step], decay[step], present, out=sums[step])
    return sums


@torch.library.custom_op("podracer::sums_over_time", mutates_args=())
def _sums(terms: Tensor, decay: Tensor, start: Tensor, reverse: bool) -> Tensor:
    if not (is_interpreted() or can_compile(terms.device)):
        return _sums_step_by_step(terms, decay, start, reverse)
    from podracer_core.kernels.rollout_step import sum_kernel

    terms, decay, start = terms.contiguous(), decay.contiguous(), start.contiguous()
    sums, columns = torch.empty_like(terms), start.numel()
    with torch.cuda.device_of(terms):  # type: ignore[no-untyped-call]
        sum_kernel[(-(-columns // _BLOCK),)](
            terms, decay, start, sums, len(terms), columns, reverse, _BLOCK
        )
    return sums


@_sums.register_fake
def _(terms: Tensor, decay: Tensor, start: Tensor, reverse: bool) -> Tensor:
    return terms.new_empty(terms.shape)


@torch.library.custom_op("podracer::act", mutates_args=("action", "log_prob"))
def _act(
    observation: Tensor,
    mean: Tensor,
    scale: Tensor,
    noise: Tensor,
    mask: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    log_std: Tensor,
    action: Tensor,
    log_prob: Tensor,
    sizes: Sequence[int],
    choices: Sequence[int],
    masked: bool,
    activation: int,
    limit: float,
) -> None:
    from podracer_core.kernels.rollout_step import act_kernel

    *w, wo = weights
    *b, bo = biases
    w, b = ([*tensors, tensors[0], tensors[0]][:3] for tensors in (w, b))
    strides = [tensor.stride(0) for tensor in (*w, wo, *b, bo, log_std, mean)]
    form = launch_form(sizes, choices, masked, activation, *chip_of(observation))
    members, count = log_prob.shape
    with torch.cuda.device_of(observation):  # type: ignore[no-untyped-call]
        act_kernel[(members, -(-count // form["ROWS"]))](
            observation, mean, scale, noise, mask, *w, wo, *b, bo, log_std, action, log_prob, count,
            *strides, limit, SEEN=observation.shape[-1], **form,
        )  # fmt: skip


_act.register_fake(lambda *_: None)
