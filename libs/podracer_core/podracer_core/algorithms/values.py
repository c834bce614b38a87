"""Networks that learn, and the error of action values against a target.

A network has parameters, an optimizer and, where wanted, a copy that follows it slowly. Shapes are
checked, so that nothing broadcasts unnoticed. `ValueBins` are values as distributions over a fixed
grid: Bellemare et al., 2017 (arXiv:1707.06887), C51."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput
from podracer_core.networks import (
    Architecture,
    MLPPass,
    StackedMLP,
    StackedNetwork,
    StackedParameters,
)
from podracer_core.optimizers import StackedAdam, clip_gradient_

_ADAM_EPSILON = 1e-8
_TARGET = "target."


class TrainedNetwork:
    """N networks of one shape for each of M members; member m's are number m * N … m * N + N - 1.

    network   M * N networks with gradients
    frozen    the same without: a view, which shows other networks the way and learns nothing from
              it
    first     of these only the first of each member
    target    the slow copy, without gradients; the networks themselves unless asked for
    """

    def __init__(
        self,
        members: int,
        architecture: Architecture,
        device: torch.device | str,
        *,
        count: int = 1,
        with_target: bool = False,
    ) -> None:
        self.members, self.count = members, count
        self._parameters = StackedParameters(members * count, architecture.shapes(), device)
        self.network = StackedNetwork.of(architecture, self._parameters)
        self.frozen, self.first = self.network.every(), self.network.every(0, count)
        rows = self._parameters.flat.view(members, -1)
        self._gradients = self._parameters.gradient.view(members, -1)
        slopes = {name: self._parameters.gradient_of(name) for name in architecture.shapes()}
        self._layer_gradients = (
            StackedNetwork(architecture, slopes).dense if architecture.is_mlp else None
        )
        self.optimizer = StackedAdam(rows, self._gradients, epsilon=_ADAM_EPSILON)
        self._target = (
            StackedParameters(members * count, architecture.shapes(), device)
            if with_target
            else self._parameters
        )
        self._with_target = with_target
        self.target = StackedNetwork.of(architecture, self._target).every()

    def initialize(self, seeds: Tensor, identity: int) -> None:
        """Fresh weights from the agents' seeds int64 [M], and a target equal to them.

        `identity` tells an algorithm's networks apart: an ensemble takes `identity` … `identity + N
        - 1`."""
        for index in range(self.count):
            self.frozen.every(index, self.count).initialize(seeds, identity + index, "fan_in")
        self._target.flat.copy_(self._parameters.flat)

    @torch.no_grad()
    def minimize(
        self,
        output: Tensor | EnsemblePass,
        slope: Tensor | None,
        learning_rate: Tensor,
        active: Tensor,
        max_norm: Tensor | None,
        further: Tensor | None = None,
    ) -> Tensor:
        """One step of Adam down a loss whose derivative in `output` is `slope` (None: output is the
        loss itself, [M]), plus a loss `further` [M] of autograd's.

        Returns which members could take it, bool [M]: those that are `active` and whose gradient is
        finite. max_norm [M]: gradients are scaled down to it where it is above 0."""
        if isinstance(output, EnsemblePass):
            assert slope is not None, "a pass is no loss"
            output.fill_gradient(slope, self._parameters, self._layer_gradients)
        else:
            self._parameters.zero_gradient()
            torch.autograd.backward(output, torch.ones_like(output) if slope is None else slope)
            self._parameters.gather_gradient()
        if further is not None:
            self._parameters.zero_gradient()
            torch.autograd.backward(further, torch.ones_like(further))
            self._parameters.gather_gradient(add=True)
        if max_norm is None:
            norm = torch.linalg.vector_norm(self._gradients, dim=1)
        else:
            norm = clip_gradient_(self._gradients, torch.where(max_norm > 0, max_norm, torch.inf))
        learns: Tensor = active & norm.isfinite()
        self.optimizer.step(learning_rate, learns)
        if self.network.normalized is not None:
            self.network.normalized.settle(learns.repeat_interleave(self.count))
        return learns

    @torch.no_grad()
    def follow(self, rate: Tensor) -> None:
        """target += rate * (network - target), rate [M]."""
        target, source = (p.flat.view(self.members, -1) for p in (self._target, self._parameters))
        target.lerp_(source, rate.unsqueeze(1))

    def shared(self) -> dict[str, Tensor]:
        """Views of all members' networks, [M, N, …] each ([M, …] where N is 1), and of targets as
        `target.NAME`: to write into them is to change them."""
        views = self._stacked(self._parameters)
        if self._with_target:
            views |= {
                _TARGET + name: tensor for name, tensor in self._stacked(self._target).items()
            }
        return views

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's networks, [N, …] each ([…] where N is 1), and of its targets as
        `target.NAME`."""
        state = self._group(self._parameters, member)
        if self._with_target:
            state |= {
                _TARGET + name: tensor for name, tensor in self._group(self._target, member).items()
            }
        return state

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave. Raises InvalidInput for other names
        or shapes."""
        own = {name: tensor for name, tensor in state.items() if not name.startswith(_TARGET)}
        self._load_group(self._parameters, member, own)
        if self._with_target:
            target = {
                n.removeprefix(_TARGET): tensor
                for n, tensor in state.items()
                if n.startswith(_TARGET)
            }
            self._load_group(self._target, member, target)

    def _stacked(self, parameters: StackedParameters) -> dict[str, Tensor]:
        ensemble = () if self.count == 1 else (self.count,)
        return {
            name: parameters[name].detach().view(self.members, *ensemble, *shape)
            for name, shape in parameters.shapes.items()
        }

    def _group(self, parameters: StackedParameters, member: int) -> dict[str, Tensor]:
        groups = [
            parameters.group_state(member * self.count + index) for index in range(self.count)
        ]
        return (
            groups[0]
            if self.count == 1
            else {name: torch.stack([g[name] for g in groups]) for name in groups[0]}
        )

    def _load_group(
        self, parameters: StackedParameters, member: int, state: Mapping[str, Tensor]
    ) -> None:
        for index in range(self.count):
            one = (
                state
                if self.count == 1
                else {name: tensor[index] for name, tensor in state.items()}
            )
            parameters.load_group_state(member * self.count + index, one)


def ensemble_outputs(
    network: StackedNetwork,
    observation: Tensor,
    action: Tensor | None = None,
    *,
    by_batch: bool = False,
) -> Tensor:
    """The outputs of N networks a member: observation [M, B, obs], action [M, B, A] -> [M, N, B,
    outputs]."""
    members = observation.shape[0]
    count = network.weights[0].shape[0] // members
    output = network(
        _repeated(observation, count),
        None if action is None else _repeated(action, count),
        by_batch=by_batch,
    )
    return output.view(members, count, *output.shape[1:])


class EnsemblePass:
    """A forward pass of N networks a member, as `ensemble_outputs`, and what its gradients are made
    of: written out where the networks are multilayer perceptrons, else autograd's.

    output   [M, N, B, outputs], without a graph
    rest     where only the first `rows` count as B, the outputs of the others
    """

    def __init__(
        self,
        network: StackedNetwork,
        observation: Tensor,
        action: Tensor | None = None,
        *,
        by_batch: bool = False,
        rows: int | None = None,
    ) -> None:
        members, every, seen = observation.shape
        self._count = network.weights[0].shape[0] // members
        self._columns = slice(seen, None)
        self._written: MLPPass | None = None
        if network.architecture.is_mlp:
            inputs = observation if action is None else torch.cat([observation, action], -1)
            self._written = network.dense.trace(_repeated(inputs, self._count), rows)
            output = self._written.output.view(members, self._count, every, -1)
        else:
            with torch.enable_grad():
                self._action = None if action is None else action.detach().requires_grad_()
                outputs = ensemble_outputs(network, observation, self._action, by_batch=by_batch)
                self._graph = outputs[:, :, :rows]
            output = outputs.detach()
        self.output, self.rest = output.tensor_split([every if rows is None else rows], 2)

    def fill_gradient(
        self, slope: Tensor, parameters: StackedParameters, gradients: StackedMLP | None
    ) -> None:
        """Write into the gradient of `parameters`, the networks', that of a loss whose derivative
        in `output` is `slope`. `gradients`: the same as layers, where the networks are multilayer
        perceptrons."""
        if self._written is None:
            parameters.zero_gradient()
            torch.autograd.backward(self._graph, slope)
            parameters.gather_gradient()
        else:
            self._written.backward(slope.flatten(0, 1), gradients)

    def action_slope(self, slope: Tensor) -> Tensor:
        """The derivative of such a loss in the action, [M, B, A], through all N networks."""
        if self._written is None:
            assert self._action is not None, "there was an action"
            (found,) = torch.autograd.grad(self._graph, self._action, slope)
            return found
        written = self._written.backward(slope.flatten(0, 1), columns=self._columns)
        assert written is not None, "its columns were wanted"
        return written.view(slope.shape[0], self._count, *written.shape[1:]).sum(1)


def _repeated(tensor: Tensor, count: int) -> Tensor:
    """Repeat each member's rows for `count` networks: [M, B, _] -> [M * count, B, _]."""
    return tensor if count == 1 else tensor.unsqueeze(1).expand(-1, count, -1, -1).flatten(0, 1)


def action_values(network: StackedNetwork, observation: Tensor, action: Tensor) -> Tensor:
    """Q(s, a) of N critics a member: observation [M, B, obs], action [M, B, A] -> [M, N, B]."""
    return ensemble_outputs(network, observation, action).squeeze(-1)


def squared_error(
    values: Tensor, target: Tensor, weight: Tensor, threshold: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """values [M, N, B] against target [M, B], rows weighted by weight [M, B].

    Returns the loss [M], half the weighted squares summed over rows and networks, its derivative in
    the values [M, N, B], and the mean size of the networks' errors [M, B]. Beyond a `threshold` [M]
    above 0 the loss goes on straight (Huber, 1964): k (|δ| - k / 2). Raises InvalidInput for other
    shapes: a [B] against a [B, 1] would become a [B, B]."""
    members, _, rows = values.shape
    if target.shape != (members, rows) or weight.shape != (members, rows):
        raise InvalidInput(
            f"values [M, N, B] {list(values.shape)} do not fit targets {list(target.shape)} and "
            f"weights {list(weight.shape)}"
        )
    error = values.detach() - target.unsqueeze(1)
    size, bounded = error.abs(), error
    if threshold is not None:
        limit = torch.where(threshold > 0, threshold, torch.inf).view(-1, 1, 1)
        # NaN if it is infinite: otherwise the slope of a broken member would look valid.
        bounded = torch.where(
            error.isinf(), torch.nan, torch.minimum(torch.maximum(error, -limit), limit)
        )
    slope = bounded * weight.unsqueeze(1)
    return (slope * (error - 0.5 * bounded)).sum((1, 2)), slope, size.mean(1)


class ValueBins:
    """`count` values that are evenly spaced on [-limit, limit]; a critic's outputs are the logits
    of their weights.

    values   float32 [K]
    """

    def __init__(self, limit: float, count: int, device: torch.device | str = "cpu") -> None:
        self.limit, self.count = limit, count
        self.values = torch.linspace(-limit, limit, count, device=device)

    def mean(self, logits: Tensor) -> Tensor:
        """logits [..., K] -> [...]."""
        return logits.softmax(-1) @ self.values

    def pessimistic(self, logits: Tensor) -> Tensor:
        """Weights [M, B, K] of the critic with the smallest mean of N [M, N, B, K], row by row."""
        weights = logits.softmax(-1)
        least = (weights @ self.values).argmin(1)  # [M, B]
        chosen = least[:, None, :, None].expand(-1, 1, -1, self.count)
        return weights.gather(1, chosen).squeeze(1)

    def project(self, weights: Tensor, reward: Tensor, discount: Tensor, bonus: Tensor) -> Tensor:
        """The distribution of reward + discount * (z - bonus), z with `weights` [M, B, K]; the
        others are [M, B].

        Values beyond the grid are moved to its ends; each other one is shared by its two neighbours
        so that its mean stays (equation 7). Returns weights [M, B, K]; NaN where what comes in is
        not finite."""
        value = reward.unsqueeze(-1) + discount.unsqueeze(-1) * (self.values - bonus.unsqueeze(-1))
        is_lost = ~value.isfinite().all(-1, keepdim=True)
        place = (value.clamp(-self.limit, self.limit) + self.limit) * (
            (self.count - 1) / (2.0 * self.limit)
        )
        place = place.masked_fill(is_lost, 0.0).clamp(0.0, self.count - 1.0)
        lower = place.floor()
        share = place - lower
        index = lower.long()
        projected = torch.zeros_like(weights).scatter_add_(-1, index, weights * (1.0 - share))
        projected.scatter_add_(-1, (index + 1).clamp(max=self.count - 1), weights * share)
        return projected.masked_fill_(is_lost, torch.nan)

    def cross_entropy(
        self, logits: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """logits [M, N, B, K] against the distribution `target` [M, B, K], rows weighted by weight
        [M, B].

        Returns the loss [M], the mean of the critics' sums over rows, its derivative in the logits
        [M, N, B, K], and how far the means are apart [M, B]. Raises InvalidInput for other shapes.
        """
        members, critics, rows, _ = logits.shape
        if target.shape != (members, rows, self.count) or weight.shape != (members, rows):
            raise InvalidInput(
                f"logits [M, N, B, K] {list(logits.shape)} do not fit targets {list(target.shape)} "
                f"and weights {list(weight.shape)}"
            )
        log_weights = logits.detach().log_softmax(-1)
        wanted, row = target.unsqueeze(1), weight.unsqueeze(1) / critics
        loss = -((wanted * log_weights).sum(-1) * row).sum((1, 2))
        slope = (log_weights.exp() - wanted) * row.unsqueeze(-1)
        error = (log_weights.exp() @ self.values - wanted @ self.values).abs().mean(1)
        return loss, slope, error
