"""The fusion of several learners of a cohort: pure functions on their parameters, and the lead's
side of it, without a network or a clock.

`Contribution` is what a learner brings, `FusionState` what all share; `Fusion` is the interface for
packages, of which Mean, Weighted and Outer are built in. `fuse` computes the new state from
contributions; `FusionTable` decides when, by quorum and deadline. Learners exchange contributions
through `podracer_core.training` and its `FusionTransport`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from podracer_core.catalogue import FUSION_GROUP, load_class
from podracer_core.errors import FieldViolation, InvalidInput, PodracerError


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


Parameters = Mapping[str, Tensor]
"""name -> [M, …] of one learner, or [K, M, …] of K learners."""


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """Settings of a job for its fusion: `learning_rate` and `momentum` of an outer optimizer."""

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        violations = []
        if not 0.0 < self.learning_rate < float("inf"):
            violations.append(
                FieldViolation("learning_rate", f"expected more than 0, got {self.learning_rate}")
            )
        if not 0.0 <= self.momentum < 1.0:
            violations.append(
                FieldViolation(
                    "momentum", f"expected 0 or more and less than 1, got {self.momentum}"
                )
            )
        if violations:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)


@dataclass(frozen=True, slots=True)
class Stack:
    """The contributions of K learners, in the order of their ranks.

    ranks       of the learners
    samples     of each learner since the last fusion
    counted     bool [K, M]: whether a learner's member counts. It does not if it has diverged or is
                not finite; there `parameters` hold the previous ones, never a NaN
    parameters  name -> float64 [K, M, …]
    """

    ranks: tuple[int, ...]
    samples: tuple[int, ...]
    counted: Tensor
    parameters: Parameters


class Fusion(ABC):
    """Combines the parameters of several learners of one cohort. One object serves one round and
    may keep state."""

    def __init__(self, options: FusionOptions) -> None:
        """Raises InvalidInput for unsupported options."""
        self.options = options

    @abstractmethod
    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """The new parameters, float64 [M, …] each.

        previous  those of the last fusion, from which all learners began; float64 [M, …] each

        The result depends only on the arguments and on former calls. Values for a member that
        counts for no learner are ignored. It must not change its arguments."""


def fusion_class(name: str) -> type[Fusion]:
    """The class of the fusion `name`. Raises as `load_class`."""
    return load_class(FUSION_GROUP, name, Fusion, "pod.fusion.name")  # type: ignore[type-abstract]


LEAD = 0
"""The rank of the lead."""


@torch.no_grad()
def fuse(fusion: Fusion, state: FusionState, contributions: Sequence[Contribution]) -> FusionState:
    """The new state, from contributions that all began from `state`. Their order does not matter.

    A learner's member counts if it is active and its contribution is finite. Otherwise its
    parameters and statistics are left out. A member that counts for no learner keeps its state and
    becomes inactive, and so does one for which the fusion returns a value that is not finite. A
    member that counts for some learner is active for all, even where it had diverged. Transitions
    always count: they have been taken.

    Raises InvalidInput for contributions of another cohort, and for a fusion that raises or returns
    other parameters than it was given."""
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
        {
            name: torch.where(column(sound, old), fused[name], old)
            for name, old in state.parameters.items()
        },
        {
            name: pooled(
                [
                    before,
                    *(
                        ordered[k].growth.statistics[name].where(counted[k] & sound)
                        for k in range(len(ordered))
                    ),
                ]
            )
            for name, before in state.statistics.items()
        },
        state.transitions
        + torch.stack([contribution.growth.transitions for contribution in ordered]).sum(0),
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
    """Whether all values of each member are finite: [M, …] -> bool [M]."""
    return tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else tensor.isfinite()


def _stacked(
    name: str, previous: Tensor, contributions: Sequence[Contribution], counted: Tensor
) -> Tensor:
    parts = [contribution.growth.parameters[name].double() for contribution in contributions]
    # Never by multiplication: a diverged member's NaN must not touch the others.
    return torch.stack(
        [torch.where(column(counted[k], part), part, previous) for k, part in enumerate(parts)]
    )


def _rounded(fused: Parameters, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters in the dtypes of the networks. Raises InvalidInput for other names or
    shapes."""
    own = {name: list(tensor.shape) for name, tensor in model.items()}
    given = {name: list(tensor.shape) for name, tensor in fused.items()}
    differing = sorted(name for name in {*own, *given} if own.get(name) != given.get(name))
    if differing:
        name = differing[0]
        raise InvalidInput(
            f"the fusion returned {name} of shape {given.get(name, 'none')}, expected "
            f"{own.get(name, 'none')}",
            reason="BROKEN_FUSION",
        )
    return {name: fused[name].to(tensor.dtype) for name, tensor in model.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of an epoch of the lead.

    fused     None: too few contributions, nothing was fused, and all learners continue with their
              own state
    answered  ranks whose contributions this settles, the lead's included
    """

    fused: Fused | None
    answered: tuple[int, ...]


class FusionTable:
    """The contributions to a fusion. The lead's own contribution opens it, `decide` closes it;
    followers may join and leave at any time.

    - The lead waits until the deadline, only for learners that are joined when its own epoch ends.
    - A learner that misses a deadline is late, and is not awaited again before its next
      contribution: one that is ten times slower costs one deadline in ten epochs.
    - A contribution to a past fusion is not used. Its learner gets the present state, continues
      from it, and is no longer late.
    - With less than the quorum nothing is fused. The contributions are settled: their learners
      train on and contribute to the next fusion. The quorum counts joined learners only.

    The caller holds one lock for all calls. `now` is in seconds of any monotonic clock.
    """

    def __init__(
        self, fusion: Fusion, state: FusionState, *, quorum: int = 0, deadline_s: float
    ) -> None:
        """`state`: the initial state of all learners. quorum: learners, the lead included; 0: more
        than half."""
        self._fusion, self._quorum, self._deadline_s = fusion, quorum, deadline_s
        self._present = Fused(0, state, ())
        self._joined: set[int] = set()
        self._late: set[int] = set()
        self._awaited: set[int] = set()
        self._brought: dict[int, Contribution] = {}
        self._deadline: float | None = None

    @property
    def present(self) -> Fused:
        """The newest fused state, or the initial one, for a learner that joins."""
        return self._present

    @property
    def brought(self) -> frozenset[int]:
        """Ranks whose contributions wait to be fused."""
        return frozenset(self._brought)

    def join(self, rank: int) -> None:
        """A follower continues from `present`. Its former contribution is dropped."""
        self.leave(rank)
        self._joined.add(rank)

    def leave(self, rank: int) -> None:
        """A follower leaves, and its contribution is dropped. Leaving twice is harmless."""
        for ranks in (self._joined, self._late, self._awaited):
            ranks.discard(rank)
        self._brought.pop(rank, None)

    def bring(self, contribution: Contribution) -> Fused | None:
        """Take a follower's contribution. Returns None if it counts for the coming fusion; else it
        is too late, and its learner continues from the returned state. Raises InvalidInput for an
        invalid one."""
        rank, due = contribution.rank, self._present.epoch + 1
        if rank not in self._joined:
            raise InvalidInput(
                f"rank {rank} brings a contribution but has not joined", reason="BAD_FUSION"
            )
        if not 0 < contribution.epoch <= due or rank in self._brought:
            raise InvalidInput(
                f"rank {rank} brings a contribution to fusion {contribution.epoch}, expected one "
                f"to fusion {due}",
                reason="BAD_FUSION",
            )
        self._late.discard(rank)
        if contribution.epoch < due:
            self._awaited.discard(rank)
            return self._present
        self._present.state.require_like(contribution.growth)
        self._brought[rank] = contribution
        return None

    def open(self, contribution: Contribution, now: float, until: float = math.inf) -> None:
        """The lead has trained its epoch and waits for the others until the deadline, at most until
        `until`."""
        self._brought[LEAD] = contribution
        self._awaited = self._joined - self._late - set(self._brought)
        self._deadline = min(now + self._deadline_s, until)

    def remaining_s(self, now: float) -> float:
        """Seconds until the deadline; 0 if no fusion is open."""
        return 0.0 if self._deadline is None else max(self._deadline - now, 0.0)

    def decide(self, now: float, *, at_once: bool = False) -> Decision | None:
        """The decision; None while a learner is awaited or no fusion is open. `at_once` ends the
        wait, as the deadline does."""
        if self._deadline is None:
            return None
        missing = self._awaited - set(self._brought)
        if missing and now < self._deadline and not at_once:
            return None
        self._late |= missing
        brought, self._brought = self._brought, {}
        self._awaited, self._deadline = set(), None
        answered = tuple(sorted(brought))
        learners = len(self._joined) + 1
        if len(brought) < min(self._quorum or learners // 2 + 1, learners):
            return Decision(None, answered)
        state = fuse(self._fusion, self._present.state, list(brought.values()))
        self._present = Fused(self._present.epoch + 1, state, answered)
        return Decision(self._present, answered)


class Mean(Fusion):
    """The mean of all learners: local SGD (Stich, 2019, arXiv:1805.09767)."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return _means(stack, stack.counted.double())


class Weighted(Fusion):
    """The mean weighted by samples: federated averaging (McMahan et al., 2017, arXiv:1602.05629,
    algorithm 1)."""

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        return _means(stack, sample_weights(stack.samples, stack.counted))


class Outer(Fusion):
    """Nesterov's momentum along the mean movement of the learners: DiLoCo (arXiv:2311.08105).

    The paper's values are a learning rate of 0.7 and a momentum of 0.9. A member that no learner
    counts keeps its velocity. A new lead begins with none."""

    _velocity: Parameters | None = None

    def fuse(self, previous: Parameters, stack: Stack) -> Parameters:
        """See `Fusion`."""
        velocity = self._velocity or {
            name: torch.zeros_like(tensor) for name, tensor in previous.items()
        }
        moves = stack.counted.any(0)
        fused: dict[str, Tensor] = {}
        following: dict[str, Tensor] = {}
        for name, mean in _means(stack, stack.counted.double()).items():
            fused[name], moved = outer_step(
                previous[name],
                mean,
                velocity[name],
                self.options.learning_rate,
                self.options.momentum,
            )
            following[name] = torch.where(column(moves, moved), moved, velocity[name])
        self._velocity = following
        return fused


def _means(stack: Stack, weight: Tensor) -> dict[str, Tensor]:
    return {name: weighted_mean(values, weight) for name, values in stack.parameters.items()}


def outer_step(
    previous: Tensor, mean: Tensor, velocity: Tensor, learning_rate: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """One step of stochastic gradient descent with momentum from `previous`; returns the new
    parameters and velocity.

    The outer gradient is the learners' mean movement, reversed: g = previous - mean. DiLoCo
    (Douillard et al., 2023, arXiv:2311.08105, algorithm 1) takes Nesterov's form, as
    torch.optim.SGD writes it:
        v <- momentum v + g,   theta = previous - learning_rate (g + momentum v).
    The mean is added to and not subtracted from what it came of, so that a learning rate of 1
    without momentum gives the mean itself, exactly: local SGD (Stich, 2019, arXiv:1805.09767). All
    tensors are of one shape, in float64."""
    gradient = previous - mean
    velocity = momentum * velocity + gradient
    return mean + (1.0 - learning_rate) * gradient - learning_rate * (momentum * velocity), velocity
