"""The shared state of a cohort's learners, their contributions, and pooled statistics of disjoint
rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the rows of M members: count [M], mean [M, K], and squares [M, K], the sum of
    squared deviations.

    All float64. With a count of 0, mean and squares are undefined.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, to be sent."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def to(self, device: torch.device | str) -> Moments:
        """The same, there."""
        return Moments(self.count.to(device), self.mean.to(device), self.squares.to(device))

    @property
    def finite(self) -> Tensor:
        """bool [M]: whether a member's moments are finite, with a valid count."""
        numbers = self.mean.isfinite().all(-1) & self.squares.isfinite().all(-1)
        return self.count.isfinite() & (self.count >= 0) & (numbers | (self.count == 0))

    def where(self, wanted: Tensor) -> Moments:
        """The moments, with no rows for members that are not `wanted` [M]."""
        return Moments(torch.where(wanted, self.count, 0.0), self.mean, self.squares)


def pooled(parts: Sequence[Moments]) -> Moments:
    """The moments of the rows of all parts, in float64; without any rows, the first part's mean.

    Chan, Golub and LeVeque, 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances", for any number of parts: with n the sum of all n_i and m the mean of all rows,
        m = sum(n_i m_i) / n,   S = sum(S_i) + sum(n_i (m_i - m)^2).
    Means are taken relative to the first part's, which is finite also where it has no rows: a large
    common offset then costs no digits."""
    first = parts[0]
    total = torch.zeros_like(first.count)
    for part in parts:
        total = total + part.count
    mean = first.mean
    for part in parts[1:]:
        share = (part.count / total.clamp(min=1.0)).unsqueeze(-1)
        mean = mean + torch.where(share > 0, share * (part.mean - first.mean), 0.0)
    squares = torch.zeros_like(first.squares)
    for part in parts:
        count = part.count.unsqueeze(-1)
        squares = squares + torch.where(
            count > 0, part.squares + count * (part.mean - mean).square(), 0.0
        )
    return Moments(total, mean, squares)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """The mean of values [K, M, …] along K, float64 [M, …]. weight [K, M] is 0 or more, and not 0
    for all K.

    sum(w_k x_k) / sum(w_k), added in the order of K in float64. With weights of 1 and float32
    values the sum is exact, and the mean as float32 is the true one correctly rounded, unless
    values differ by more than a factor of 2^24 / K."""
    total = torch.zeros_like(values[0], dtype=torch.float64)
    for value, share in zip(values, weight, strict=True):
        total += value.double() * column(share.double(), value)
    return total / column(weight.double().sum(0), total)


def sample_weights(samples: Sequence[int], counted: Tensor) -> Tensor:
    """float64 [K, M]: the samples [K] of learners that are `counted` bool [K, M]; equal weights if
    all are 0.

    They are divided by their greatest common divisor, so equal numbers of samples give exactly the
    plain mean."""
    divisor = math.gcd(*samples) or 1
    reduced = torch.tensor(
        [count // divisor for count in samples], dtype=torch.float64, device=counted.device
    )
    weight = torch.where(counted, reduced.unsqueeze(1), 0.0)
    return torch.where(weight.sum(0) > 0, weight, counted.double())


def column(of_members: Tensor, like: Tensor) -> Tensor:
    """[M] as [M, 1, …], to go with a tensor `like` [M, …]."""
    return of_members.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True, slots=True)
class FusionState:
    """The state of a cohort of M members that its learners share.

    parameters   name -> floating-point [M, …]: networks, their slow copies, the logarithm of a
                 temperature
    statistics   name -> those of each normalizer; in a contribution their growth since the last
                 fusion
    transitions  int64 [M], environment steps of each agent; in a contribution those since the last
                 fusion
    active       bool [M], false for a member that has diverged
    """

    parameters: Mapping[str, Tensor]
    statistics: Mapping[str, Moments]
    transitions: Tensor
    active: Tensor

    def to(self, device: torch.device | str) -> FusionState:
        """The same, there."""
        return FusionState(
            {name: tensor.to(device) for name, tensor in self.parameters.items()},
            {name: moments.to(device) for name, moments in self.statistics.items()},
            self.transitions.to(device),
            self.active.to(device),
        )

    def require_like(self, other: FusionState) -> None:
        """Raises InvalidInput unless `other` has the same names, shapes and dtypes: it is of the
        same cohort."""
        own, others = self.kinds(), other.kinds()
        differing = sorted(name for name in {*own, *others} if own.get(name) != others.get(name))
        if differing:
            name = differing[0]
            raise InvalidInput(
                f"a learner brings {name} as {others.get(name, 'nothing')}, expected "
                f"{own.get(name, 'nothing')}: it does not train the same cohort ({len(differing)} "
                f"of {len(own)} tensors differ)",
                reason="COHORT_MISMATCH",
            )

    def kinds(self) -> dict[str, str]:
        """dtype and shape of every tensor by name, in order: equal for learners of one cohort."""
        tensors = {f"parameter {name}": tensor for name, tensor in self.parameters.items()}
        for name, moments in self.statistics.items():
            tensors |= {
                f"statistics {name}.{key}": tensor for key, tensor in moments.tensors().items()
            }
        tensors |= {"transitions": self.transitions, "active": self.active}
        return {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class Contribution:
    """One learner's contribution to a fusion.

    rank     of the learner; the lead's is 0
    epoch    number of the fusion, counted from 1
    samples  trained on since the last fusion: the weight in a weighted mean
    growth   its parameters, and the growth of statistics and transitions since the last fusion
    """

    rank: int
    epoch: int
    samples: int
    growth: FusionState


@dataclass(frozen=True, slots=True)
class Fused:
    """The result of a fusion.

    epoch  its number; 0 for the initial state
    state  the state to continue from
    ranks  of the learners whose contributions it contains
    """

    epoch: int
    state: FusionState
    ranks: tuple[int, ...]
