"""PPO's gradient steps by the kernels of `ppo_step`, as operators of torch; what they do not cover
stays eager."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from podracer_core.device import can_compile
from podracer_core.networks import (
    ACTOR,
    ActionHead,
    ActorCritic,
    Architecture,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    PolicyHead,
    StackedMLP,
)
from podracer_core.optimizers import BETA2, StackedAdam

ACTIVATIONS = {"tanh": 0, "relu": 1, "elu": 2}
_WIDEST, _MOST_LAYERS = 64, 3  # what fits on the chip beside the rows
_PROGRAMS = 256
"""Programs of a minibatch's gradient: about two for each multiprocessor of a large GPU."""
_BLOCK = 1024
LOSS_ROWS = 32
"""Rows of a block whose loss fits into registers."""


def has_kernels(architecture: Architecture, head: ActionHead, device: torch.device) -> bool:
    """Whether there are kernels for a policy of this form on this device."""
    return (
        architecture.is_mlp
        and type(head) in (CategoricalHead, MultiCategoricalHead, GaussianHead)
        and head.output_size <= _WIDEST
        and (is_interpreted() or can_compile(device))
    )


def fits_on_chip(architecture: Architecture) -> bool:
    """Whether the activations of some rows fit on the chip, beside the weights."""
    is_known = (
        architecture.activation in ACTIVATIONS
        and 1 <= len(architecture.hidden_sizes) <= _MOST_LAYERS
    )
    return is_known and max(architecture.dense_sizes) <= _WIDEST


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class PPOKernels:
    """Gradient steps of M members on `columns` of all rows, as `RolloutRows` holds them."""

    def __init__(self, networks: ActorCritic, head: PolicyHead, optimizer: StackedAdam) -> None:
        architecture = networks.both.architecture
        self._optimizer = optimizer
        self._members = len(optimizer.step_count)
        self._size = networks.parameters.size
        self._sizes = list(architecture.dense_sizes)
        self._choices = choices_of(head)
        self._activation = architecture.activation
        self._actions = math.prod(head.action_shape)
        self._state = optimizer.parameters.new_zeros((2, self._members, 16), dtype=torch.float64)

    def begin(self, active: Tensor, rate_factor: Tensor) -> None:
        """Begin an update: all `active` [M] members learn."""
        self._turn = 0
        state = self._state[0]
        state.zero_()
        state[:, :2] = active.unsqueeze(1)
        state[:, 2] = rate_factor
        state[:, 3] = self._optimizer.step_count

    def step(
        self,
        columns: Tensor,
        order: Tensor,
        rows: slice,
        hyperparameters: tuple[Tensor, Tensor],
        *,
        masked: bool,
        clips_values: bool,
        adapts_rate: bool,
    ) -> None:
        """A step of those that still learn, on these `rows` of the `order` [M, R]; hyperparameters
        [4, M] of `ppo_step.gradient_kernel` and [5, M] of `ppo_step.adam_kernel`."""
        optimizer = self._optimizer
        partial, sums = self._gradient(
            columns, order, rows, hyperparameters[0], masked, clips_values
        )
        torch.ops.podracer.ppo_move(
            partial, sums, optimizer.gradient, optimizer.parameters, optimizer.first_moment,
            optimizer.second_moment, self._state[self._turn], self._state[1 - self._turn],
            hyperparameters[1], adapts_rate, optimizer.beta1, optimizer.epsilon,
        )  # fmt: skip
        self._turn = 1 - self._turn

    def _gradient(
        self,
        columns: Tensor,
        order: Tensor,
        rows: slice,
        losses: Tensor,
        masked: bool,
        clips_values: bool,
    ) -> tuple[Tensor, Tensor]:
        """The gradient in parts, [2 M, parts, parameters], and the sums of each network, [2 M,
        parts, 8]."""
        size = rows.stop - rows.start
        parts = self._parts(size)
        partial = columns.new_empty(2 * self._members, parts, self._size)
        sums = columns.new_empty(2 * self._members, parts, 8)
        torch.ops.podracer.ppo_gradient(
            self._optimizer.parameters, columns, order, losses, partial, sums, rows.start, size,
            self._sizes, self._choices, self._actions, masked, ACTIVATIONS[self._activation],
            clips_values,
        )  # fmt: skip
        return partial, sums

    def _parts(self, size: int) -> int:
        return max(1, min(-(-size // 64), _PROGRAMS // (2 * self._members)))

    def end(self, active: Tensor, rate_factor: Tensor) -> Tensor:
        """Take over who is active, rates and counts of steps; returns the sums of the metrics and
        of steps, [7, M]."""
        state = self._state[self._turn]
        active.copy_(state[:, 0] > 0)
        rate_factor.copy_(state[:, 2])
        self._optimizer.step_count.copy_(state[:, 3])
        return state[:, 4:11].t().float()


class WidePPOKernels(PPOKernels):
    """The same for wider networks, layer by layer."""

    def __init__(self, networks: ActorCritic, head: PolicyHead, optimizer: StackedAdam) -> None:
        super().__init__(networks, head, optimizer)
        self._network, count = networks.both.dense, 2 * self._members
        self._log_std = networks.settings.get("log_std", optimizer.parameters)
        self._slopes = torch.zeros(count, 1, self._size, device=optimizer.parameters.device)
        views, start = [], 0
        for shape in networks.parameters.shapes.values():
            end = start + math.prod(shape)
            views.append(self._slopes[:, 0, start:end].view(count, *shape))
            start = end
        layers = 2 * (len(self._sizes) - 1)
        self._into = StackedMLP(
            tuple(views[0:layers:2]), tuple(views[1:layers:2]), self._activation
        )
        self._of_log_std = views[layers][ACTOR::2] if len(views) > layers else None

    def _gradient(
        self,
        columns: Tensor,
        order: Tensor,
        rows: slice,
        losses: Tensor,
        masked: bool,
        clips_values: bool,
    ) -> tuple[Tensor, Tensor]:
        index, size = order[:, rows], rows.stop - rows.start
        if self._members > 1:
            index = index + torch.arange(
                0, order.numel(), order.shape[1], device=order.device
            ).unsqueeze(1)
        batch = columns.flatten(0, 1).index_select(0, index.flatten()).view(self._members, size, -1)
        observation = batch[..., : self._sizes[0]].repeat_interleave(2, 0)
        traced = self._network.trace(observation)
        parts = self._parts(size)
        slopes = torch.empty_like(traced.output)
        sums = columns.new_empty(2 * self._members, parts, 8)
        of_log_std = columns.new_empty(self._members, parts, self._sizes[-1])
        torch.ops.podracer.ppo_loss(
            traced.output, batch, self._log_std, losses, slopes, of_log_std, sums, self._sizes,
            self._choices, self._actions, masked, clips_values,
        )  # fmt: skip
        traced.backward(slopes, self._into)
        if self._of_log_std is not None:
            torch.sum(of_log_std, 1, out=self._of_log_std)
        return self._slopes, sums


def choices_of(head: ActionHead) -> list[int]:
    """How many outputs each choice has; none for a Gaussian."""
    if isinstance(head, MultiCategoricalHead):
        return head.sizes
    return [head.output_size] if isinstance(head, CategoricalHead) else []


@torch.library.custom_op("podracer::ppo_gradient", mutates_args=("partial", "sums"))
def _gradient(
    parameters: Tensor,
    columns: Tensor,
    order: Tensor,
    hyperparameters: Tensor,
    partial: Tensor,
    sums: Tensor,
    first: int,
    size: int,
    sizes: Sequence[int],
    choices: Sequence[int],
    actions: int,
    masked: bool,
    activation: int,
    clips_values: bool,
) -> None:
    from podracer_core.kernels import ppo_step

    networks, parts, parameter_count = partial.shape
    form = launch_form(sizes, choices, masked, activation, *chip_of(parameters))
    with torch.cuda.device_of(parameters):  # type: ignore[no-untyped-call]
        ppo_step.gradient_kernel[(networks, parts)](
            parameters, columns, order, hyperparameters, partial, sums, order.shape[1], first, size,
            networks // 2, PARAMETERS=parameter_count, ACTIONS=actions, CLIPS_VALUES=clips_values,
            **form,
        )  # fmt: skip


def chip_of(tensor: Tensor) -> tuple[str, tuple[int, int]]:
    """The precision of products that torch is set to, and what the chip can do."""
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 and not is_interpreted() else "ieee"
    return precision, torch.cuda.get_device_capability(tensor.device) if tensor.is_cuda else (9, 0)


def launch_form(
    sizes: Sequence[int],
    choices: Sequence[int],
    masked: bool,
    activation: int,
    precision: str,
    capability: tuple[int, int],
) -> dict[str, Any]:
    """The constants of a kernel for layers of these sizes, and its form on a chip: as many rows at
    a time as leave two layers of 64 in its registers."""
    hidden = [*sizes[1:-1], 0, 0][:3]
    padded = [_padded(size) for size in (sizes[0], *hidden, sizes[-1])]
    return {
        "I": sizes[0], "H1": hidden[0], "H2": hidden[1], "H3": hidden[2], "O": sizes[-1],
        "IP": padded[0], "P1": padded[1], "P2": padded[2], "P3": padded[3], "OP": padded[4],
        "SIZES": tuple(choices), "MASKED": masked, "ACTIVATION": activation, "PRECISION": precision,
        "ROWS": 32 if capability[0] == 9 else 16, "num_warps": 8, "num_stages": 1,
    }  # fmt: skip


@torch.library.custom_op("podracer::ppo_loss", mutates_args=("slopes", "of_log_std", "sums"))
def _loss(
    outputs: Tensor,
    columns: Tensor,
    log_std: Tensor,
    hyperparameters: Tensor,
    slopes: Tensor,
    of_log_std: Tensor,
    sums: Tensor,
    sizes: Sequence[int],
    choices: Sequence[int],
    actions: int,
    masked: bool,
    clips_values: bool,
) -> None:
    from podracer_core.kernels import ppo_step

    networks, parts, _ = sums.shape
    with torch.cuda.device_of(outputs):  # type: ignore[no-untyped-call]
        ppo_step.loss_kernel[(networks, parts)](
            outputs, columns, log_std, hyperparameters, slopes, of_log_std, sums, columns.shape[1],
            networks // 2, log_std.stride(0), sizes[0], sizes[-1], _padded(sizes[-1]), actions,
            tuple(choices), masked, clips_values, LOSS_ROWS,
        )  # fmt: skip


@torch.library.custom_op(
    "podracer::ppo_move",
    mutates_args=("gradient", "parameters", "first_moment", "second_moment", "after"),
)
def _move(
    partial: Tensor,
    sums: Tensor,
    gradient: Tensor,
    parameters: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    before: Tensor,
    after: Tensor,
    hyperparameters: Tensor,
    adapts_rate: bool,
    beta1: float,
    epsilon: float,
) -> None:
    from podracer_core.kernels import ppo_step

    networks, parts, count = partial.shape
    members, blocks = networks // 2, -(-2 * count // _BLOCK)
    squares = sums.new_empty(members, blocks)
    sum_parts = sums.shape[1]
    padded = _power(sum_parts)
    with torch.cuda.device_of(parameters):  # type: ignore[no-untyped-call]
        ppo_step.reduce_kernel[(members, blocks)](
            partial, sums, gradient, squares, parts, sum_parts, count, padded, _BLOCK
        )
        ppo_step.adam_kernel[(members, blocks)](
            parameters, first_moment, second_moment, gradient, squares, sums, before, after,
            hyperparameters, sum_parts, members, count, padded, _power(blocks), adapts_rate,
            math.log(beta1), math.log(BETA2), beta1, BETA2, epsilon, _BLOCK,
        )  # fmt: skip


for _operator in (_gradient, _loss, _move):
    _operator.register_fake(lambda *_: None)


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()


def _padded(size: int) -> int:
    """As many numbers as a product on the chip takes at least."""
    return max(16, _power(size))


def kernels_for(
    networks: ActorCritic, head: PolicyHead, optimizer: StackedAdam
) -> PPOKernels | None:
    """The kernels for PPO's gradient steps; None where there are none for this form, device or
    machine."""
    architecture = networks.both.architecture
    if not has_kernels(architecture, head, optimizer.parameters.device):
        return None
    return (PPOKernels if fits_on_chip(architecture) else WidePPOKernels)(networks, head, optimizer)
